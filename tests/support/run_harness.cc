#include "tests/support/run_harness.h"

#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/host_port.h"
#include "base/status.h"

namespace syncopate::testing {
namespace {

namespace fs = std::filesystem;

std::string Text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

absl::Status Unreachable(const std::string& address) {
  return absl::UnavailableError(absl::StrCat("nobody answers GET at ", address));
}

std::vector<std::string> Concat(std::vector<std::string> first, const std::vector<std::string>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// A connected TCP socket, closed with the object.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

int Connect(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return -1;
  int fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bool connected = fd >= 0 && ::connect(fd, found->ai_addr, found->ai_addrlen) == 0;
  ::freeaddrinfo(found);
  if (connected) return fd;
  if (fd >= 0) ::close(fd);
  return -1;
}

// Reads until the peer closes; returns what came so far if the peer does not close within `timeout`.
std::string ReadAll(int fd, absl::Duration timeout) {
  std::string text;
  std::array<char, 4096> buffer;
  const absl::Time deadline = absl::Now() + timeout;
  while (absl::Now() < deadline) {
    pollfd watched{fd, POLLIN, 0};
    ::poll(&watched, 1, static_cast<int>(absl::ToInt64Milliseconds(deadline - absl::Now())) + 1);
    ssize_t count = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count == 0) break;
    if (count > 0) text.append(buffer.data(), static_cast<size_t>(count));
  }
  return text;
}

// Sends one request and returns the body of the answer, whose status must be 200.
absl::StatusOr<std::string> Http(const std::string& address, const std::string& request) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto parsed, ParseHostPort(address));
  Socket socket(Connect(parsed.host, parsed.port));
  const auto size = static_cast<ssize_t>(request.size());
  if (socket.fd() < 0 || ::send(socket.fd(), request.data(), request.size(), MSG_NOSIGNAL) != size) {
    return Unreachable(address);
  }
  std::string answer = ReadAll(socket.fd(), absl::Seconds(10));
  const size_t body = answer.find("\r\n\r\n");
  if (body == std::string::npos) return Unreachable(address);
  if (!absl::StrContains(answer.substr(0, answer.find("\r\n")), " 200 ")) {
    return absl::NotFoundError(answer.substr(0, body));
  }
  return answer.substr(body + 4);
}

}  // namespace

std::string BinaryPath(const std::string& name) { return absl::StrCat(SYNCOPATE_BINARY_DIR, "/", name); }
std::string ExamplePath(const std::string& name) { return absl::StrCat(SYNCOPATE_EXAMPLE_DIR, "/", name); }

absl::StatusOr<CommandResult> RunCommand(const std::string& name, const std::vector<std::string>& args,
                                         absl::Duration timeout) {
  TempDir temp;
  Process::Options options{.program = BinaryPath(name), .args = args, .log_path = temp.path() + "/output"};
  SYNCOPATE_ASSIGN_OR_RETURN(auto process, Process::Start(options));
  SYNCOPATE_ASSIGN_OR_RETURN(ExitStatus exit, process->WaitExit(timeout));
  return CommandResult{exit.signal == 0 ? exit.code : 128 + exit.signal, process->Log()};
}

std::vector<Json> JsonLines(const std::string& text) {
  std::vector<Json> objects;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    Json object = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
    if (object.is_object()) objects.push_back(std::move(object));
  }
  return objects;
}

absl::StatusOr<std::map<int64_t, std::string>> TwinDigests(const std::string& config,
                                                           std::vector<std::string> overrides, int64_t count) {
  overrides.insert(overrides.begin(), config);
  for (std::string more : {absl::StrCat("run.steps=", count), std::string("eval.every_steps=0")}) {
    overrides.push_back(std::move(more));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(CommandResult twin, RunCommand("syncopate-twin", overrides, 2 * kPatience));
  if (twin.code != 0) return absl::InternalError(absl::StrCat("the twin failed: ", twin.output));
  std::map<int64_t, std::string> digests;
  for (const Json& line : JsonLines(twin.output)) digests[line.at("step")] = line.at("weights_digest");
  return digests;
}

absl::StatusOr<std::string> HttpGet(const std::string& address, const std::string& path) {
  return Http(address, absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", address, "\r\nConnection: close\r\n\r\n"));
}

absl::StatusOr<std::string> HttpPost(const std::string& address, const std::string& path, const Json& body) {
  const std::string text = body.dump();
  return Http(address,
              absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: ", address, "\r\nConnection: close\r\n",
                           "Content-Type: application/json\r\nContent-Length: ", text.size(), "\r\n\r\n", text));
}

RunHarness::RunHarness(std::vector<std::string> overrides, const std::string& example)
    : config_(ExamplePath(example)), overrides_(std::move(overrides)) {}

std::vector<std::string> RunHarness::overrides() const {
  std::vector<std::string> all = overrides_;
  all.push_back(absl::StrCat("run.dir=", run_dir()));
  if (!synchronizer_.empty()) all.push_back(absl::StrCat("synchronizer.address=", synchronizer_));
  return all;
}

absl::StatusOr<std::unique_ptr<Process>> RunHarness::StartRun(std::vector<std::string> args) {
  args.insert(args.begin(), "run");
  args.push_back("--json");
  return Process::Start(
      {.program = BinaryPath("syncopate"), .args = std::move(args), .log_path = temp_.path() + "/run.log"});
}

absl::StatusOr<std::unique_ptr<Process>> RunHarness::Run(const std::vector<std::string>& more) {
  return StartRun(Concat(Concat({config_}, overrides()), more));
}

absl::StatusOr<std::unique_ptr<Process>> RunHarness::Resume(const std::vector<std::string>& more) {
  return StartRun(Concat({"--resume", run_dir()}, more));
}

absl::StatusOr<std::unique_ptr<Process>> RunHarness::LaunchDaemon(const std::string& role, int64_t index,
                                                                  const std::vector<std::string>& more) {
  if (synchronizer_.empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(int port, FreePort());
    synchronizer_ = absl::StrCat("127.0.0.1:", port);
  }
  std::error_code error;
  fs::create_directories(Path("logs"), error);
  if (error) return absl::InternalError(absl::StrCat(Path("logs"), ": ", error.message()));
  std::vector<std::string> args = Concat({config_}, overrides());
  if (role == "rollouter") args.push_back(absl::StrCat("rollouter.index=", index));
  if (role == "trainer" && !trainers_stay_) args.push_back("--exit-on-completion");
  return Process::Start({.program = BinaryPath("syncopate-" + role),
                         .args = Concat(std::move(args), more),
                         .log_path = Path(absl::StrCat("logs/", role, "-", index, ".log"))});
}

absl::StatusOr<std::unique_ptr<Process>> RunHarness::StartDaemon(const std::string& role, int64_t index,
                                                                 const std::vector<std::string>& more) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto process, LaunchDaemon(role, index, more));
  const std::string file = daemon::EndpointPath(run_dir(), role, index);
  bool ended = false;
  bool ready = Eventually(kPatience, [&] {
    ended = !process->Running();
    auto endpoint = daemon::ReadDaemonEndpoint(file);
    return ended || (endpoint.ok() && endpoint->pid == process->pid());
  });
  if (ready && !ended) return process;
  return absl::FailedPreconditionError(
      absl::StrCat(role, "-", index, ended ? " ended" : " is not ready", "; it logged\n", process->Log()));
}

absl::StatusOr<CommandResult> RunHarness::Ctl(std::vector<std::string> args, absl::Duration timeout) const {
  return RunCommand("syncopate", Concat({"ctl", "--run", run_dir()}, args), timeout);
}

absl::StatusOr<daemon::DaemonEndpoint> RunHarness::Endpoint(const std::string& role, int64_t index, pid_t other_than,
                                                            absl::Duration timeout) const {
  absl::StatusOr<daemon::DaemonEndpoint> endpoint;
  const std::string file = daemon::EndpointPath(run_dir(), role, index);
  bool there = Eventually(timeout, [&] {
    endpoint = daemon::ReadDaemonEndpoint(file);
    // An endpoint file of an earlier incarnation names a process that is gone.
    return endpoint.ok() && endpoint->pid != other_than && ::kill(static_cast<pid_t>(endpoint->pid), 0) == 0;
  });
  if (there) return endpoint;
  return absl::DeadlineExceededError(absl::StrCat(role, "-", index, " is not ready in ", run_dir()));
}

Json RunHarness::Summary() const {
  Json summary = Json::parse(Text(Path("summary.json")), nullptr, /*allow_exceptions=*/false);
  return summary.is_object() ? summary : Json();
}

std::vector<Json> RunHarness::Records(const std::string& kind) const {
  std::vector<Json> records;
  for (Json& line : JsonLines(Text(Path("metrics.jsonl")))) {
    if (line.value("kind", "") == kind) records.push_back(std::move(line));
  }
  return records;
}

std::map<int64_t, std::string> RunHarness::Digests() const {
  std::map<int64_t, std::string> digests;
  for (const Json& record : Records("step")) digests[record.at("step")] = record.at("weights_digest");
  return digests;
}

int64_t RunHarness::LastStep() const {
  std::vector<Json> steps = Records("step");
  return steps.empty() ? 0 : steps.back().at("step").get<int64_t>();
}

absl::Status RunHarness::AwaitStep(int64_t step, absl::Duration timeout) const {
  if (Eventually(timeout, [&] { return LastStep() >= step; })) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("step ", step, " did not come within ", absl::FormatDuration(timeout),
                                                  "; the last is ", LastStep()));
}

std::string RunHarness::Log(const std::string& daemon) const {
  return Text(Path(absl::StrCat("logs/", daemon, ".log")));
}

}  // namespace syncopate::testing
