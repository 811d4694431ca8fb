// A daemon that does no work, for tests of the code that starts, watches and stops daemons. The name of its binary
// gives its role (syncopate-trainer, ...). It reads its configuration as a real daemon does, writes its endpoint file
// and waits for SIGTERM. A trainer waits for its rollouters, writes lines of metrics.jsonl, writes summary.json after
// run.steps lines, and exits.
// A file behaviour.<role>-<index> beside the binary may contain words that make the daemon misbehave:
//   refuse          exit at once with the code for a refused configuration
//   fail            exit at once with code 3 and a line on standard error
//   ignore-term     keep running after SIGTERM
//   hold            do not get ready while the file says so
//   endless         (trainer) never finish
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/daemon/command_line.h"
#include "base/daemon/daemon_endpoints.h"
#include "base/host_port.h"
#include "services/config/run_config.h"

namespace syncopate::testing {
namespace {

namespace fs = std::filesystem;

std::set<std::string> Behaviour(const fs::path& folder, const std::string& name) {
  std::ifstream file(folder / ("behaviour." + name));
  return std::set<std::string>(std::istream_iterator<std::string>(file), {});
}

// The port that the configuration fixes, or else a port derived from the process id. No process listens on either.
std::string GetAddress(const v1::RunConfig& config, const std::string& role) {
  auto fixed = ParseHostPort(config.synchronizer().address());
  bool is_fixed = role == "synchronizer" && fixed.ok() && fixed->port != 0;
  return is_fixed ? config.synchronizer().address() : absl::StrCat("127.0.0.1:", 1 + ::getpid() % 1000);
}

// Returns true if a stop was requested.
bool Pace(const sigset_t& term) {
  const timespec pace{0, 1000000};
  return ::sigtimedwait(&term, nullptr, &pace) == SIGTERM;
}

bool RolloutersAreThere(const v1::RunConfig& config) {
  for (int64_t i = 0; i < config.run().rollouters(); ++i) {
    if (!fs::exists(daemon::EndpointPath(config.run().dir(), "rollouter", i))) return false;
  }
  return true;
}

// Writes about one line a millisecond until all steps are written or a stop is requested.
void Train(const v1::RunConfig& config, bool endless, const sigset_t& term) {
  std::ofstream lines(fs::path(config.run().dir()) / "metrics.jsonl", std::ios::app);
  lines << R"({"kind":"eval","step":0,"eval_exact":0,"samples":[{"prompt":"1 2","answer":"1 1","expected":"2 1"}]})"
        << std::endl;
  int64_t step = 0;
  bool stopped = false;
  while (!stopped && !RolloutersAreThere(config)) stopped = Pace(term);
  while (!stopped && (endless || step < config.run().steps())) {
    lines << absl::StrCat(R"({"kind":"step","step":)", ++step,
                          R"(,"reward_mean":0.5,"trained_tokens":10,"step_seconds":0.001})")
          << std::endl;
    stopped = Pace(term);
  }
  if (step == 0) return;  // a trainer that has made no step writes no summary
  std::ofstream(fs::path(config.run().dir()) / "summary.json")
      << absl::StrCat(R"({"status":")", stopped ? "stopped" : "completed", R"(","steps":)", step, "}");
}

int Main(int argc, char** argv) {
  sigset_t term;
  ::sigemptyset(&term);
  ::sigaddset(&term, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &term, nullptr);
  auto line = daemon::ParseCommandLine({argv + 1, argv + argc});
  if (!line.ok()) return config::kConfigExitCode;
  auto config = config::LoadRunConfig(line->config, line->overrides);
  if (!config.ok()) {
    std::cerr << config.status().message() << "\n";
    return config::kConfigExitCode;
  }
  const fs::path self(argv[0]);
  std::string role = self.filename().string().substr(std::string("syncopate-").size());
  daemon::DaemonEndpoint endpoint{role, role == "rollouter" ? config->rollouter().index() : 0,
                                  GetAddress(*config, role), "127.0.0.1:1", ::getpid()};
  auto behaviour = Behaviour(self.parent_path(), endpoint.Name());
  if (behaviour.count("refuse") > 0) return config::kConfigExitCode;
  if (behaviour.count("fail") > 0) {
    std::cerr << endpoint.Name() << " fails as it was told to\n";
    return 3;
  }
  while (Behaviour(self.parent_path(), endpoint.Name()).count("hold") > 0) {
    if (Pace(term)) return 0;
  }
  if (!daemon::WriteDaemonEndpoint(config->run().dir(), endpoint).ok()) return 1;
  if (behaviour.count("ignore-term") > 0) {
    for (int ignored = 0;;) ::sigwait(&term, &ignored);
  }
  int received = 0;
  if (role == "trainer") {
    Train(*config, behaviour.count("endless") > 0, term);
  } else {
    ::sigwait(&term, &received);
  }
  return 0;
}

}  // namespace
}  // namespace syncopate::testing

int main(int argc, char** argv) { return syncopate::testing::Main(argc, argv); }
