#include "bench/process/bench_child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace syncopate::bench {
namespace {

constexpr int kCannotExecute = 127;

absl::Status CannotStart(const std::string& program, const std::string& what) {
  return Error(absl::StatusCode::kUnavailable, "CANNOT_START",
               absl::StrCat("cannot start ", program, ": ", what, ": ", std::strerror(errno)));
}

// The child's three descriptors and its program; made before the fork, after which only async-signal-safe calls are
// allowed.
struct ChildPlan {
  const char* program = nullptr;
  std::vector<char*> arguments;
  std::vector<char*> environment;
  std::array<int, 3> descriptors = {-1, -1, -1};
  pid_t parent = 0;
};

[[noreturn]] void BecomeChild(const ChildPlan& plan) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.parent) ::_exit(kCannotExecute);  // the parent died before prctl
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  for (int i = 0; i < 3; ++i) ::dup2(plan.descriptors[i], i);
  ::close_range(3, UINT_MAX, 0);
  ::execve(plan.program, plan.arguments.data(), plan.environment.data());
  ::_exit(kCannotExecute);
}

// Both ends close on exec; dup2 gives the child its own.
absl::StatusOr<std::array<int, 2>> MakePipe(const std::string& program) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return CannotStart(program, "pipe");
  return ends;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BenchChild>> BenchChild::Start(const Options& options, EventQueue* events) {
  if (::access(options.program.c_str(), X_OK) != 0) {
    const std::string name = options.program.substr(options.program.rfind('/') + 1);
    return CannotStart(options.program,
                       absl::StrCat("`scripts/build.sh release ", name, "` makes it, which a run does not need"));
  }
  const int log = ::open(options.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log < 0) return CannotStart(options.program, absl::StrCat("log ", options.log));
  SYNCOPATE_ASSIGN_OR_RETURN(auto input, MakePipe(options.program));
  SYNCOPATE_ASSIGN_OR_RETURN(auto output, MakePipe(options.program));
  std::vector<std::string> words = {options.program};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  ChildPlan plan{options.program.c_str(), {}, {}, {input[0], output[1], log}, ::getpid()};
  for (std::string& word : words) plan.arguments.push_back(word.data());
  plan.arguments.push_back(nullptr);
  // The first of two variables of one name counts.
  std::vector<std::string> variables = options.environment;
  for (std::string& variable : variables) plan.environment.push_back(variable.data());
  for (char** variable = environ; *variable != nullptr; ++variable) plan.environment.push_back(*variable);
  plan.environment.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) BecomeChild(plan);
  for (int descriptor : plan.descriptors) ::close(descriptor);
  if (pid < 0) return CannotStart(options.program, "fork");
  ::setpgid(pid, pid);  // parent and child both call it, whichever runs first
  return std::unique_ptr<BenchChild>(new BenchChild(options, pid, input[1], output[0], events));
}

BenchChild::BenchChild(Options options, pid_t pid, int input, int output, EventQueue* events)
    : options_(std::move(options)),
      pid_(pid),
      input_(input),
      events_(events),
      started_(Clock::Real()->Now()),
      reader_([this, output] { ReadLines(output); }) {}

BenchChild::~BenchChild() {
  // Signals the group, for processes that the child has started. The child is not reaped yet, so the number is still
  // its own.
  ::kill(-pid_, SIGKILL);
  ::kill(pid_, SIGKILL);
  ::close(input_);
  reader_.join();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

absl::Status BenchChild::Send(const nlohmann::json& command) {
  const std::string line =
      command.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace) + "\n";
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = ::write(input_, line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      return Error(absl::StatusCode::kUnavailable, "PEER_GONE",
                   absl::StrCat(options_.name, " does not listen any more: ", std::strerror(errno)));
    }
    written += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

void BenchChild::Signal(int number) const { ::kill(pid_, number); }

std::string BenchChild::LogTail() const {
  constexpr size_t kBytes = 1500;
  std::ifstream file(options_.log, std::ios::binary);
  std::string log((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return log.size() > kBytes ? log.substr(log.size() - kBytes) : log;
}

void BenchChild::ReadLines(int output) {
  std::string pending;
  std::array<char, 65536> buffer;
  while (true) {
    const ssize_t count = ::read(output, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    pending.append(buffer.data(), static_cast<size_t>(count));
    for (size_t end; (end = pending.find('\n')) != std::string::npos; pending.erase(0, end + 1)) {
      nlohmann::json body = nlohmann::json::parse(pending.substr(0, end), nullptr, /*allow_exceptions=*/false);
      if (!body.is_object()) continue;
      auto kind = body.find("event");
      if (kind == body.end() || !kind->is_string()) continue;
      std::string name = kind->get<std::string>();
      events_->Put({options_.name, std::move(name), std::move(body), Clock::Real()->Now()});
    }
  }
  ::close(output);
  events_->Put({options_.name, "ended", nlohmann::json::object(), Clock::Real()->Now()});
}

}  // namespace syncopate::bench
