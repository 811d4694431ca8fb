#include "tests/support/process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <regex.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace syncopate::testing {
namespace {

constexpr absl::Duration kReapWithin = absl::Seconds(10);
// The upper bound of one sleep, for file systems that give no notice of writes.
constexpr absl::Duration kLongestSleep = absl::Milliseconds(100);

absl::Status SystemError(absl::string_view what) {
  return Error(absl::StatusCode::kInternal, "SYSTEM", absl::StrCat(what, ": ", std::strerror(errno)));
}

// glibc 2.36 declares pidfd_open without C linkage.
int OpenPidFd(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

absl::Time Now() { return Clock::Real()->Now(); }

// A POSIX extended regular expression. (GCC 12 warns about std::regex under its sanitizers.)
class Regex {
 public:
  explicit Regex(const std::string& pattern)
      : good_(::regcomp(&regex_, pattern.c_str(), REG_EXTENDED | REG_NOSUB) == 0) {}
  ~Regex() {
    if (good_) ::regfree(&regex_);
  }
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  bool good() const { return good_; }
  bool Finds(const std::string& text) const { return ::regexec(&regex_, text.c_str(), 0, nullptr, 0) == 0; }

 private:
  regex_t regex_{};
  const bool good_;
};

// What the child process needs. It is made before the fork: after the fork, only calls that are safe in a signal
// handler are allowed.
struct ChildPlan {
  std::vector<char*> argv;
  const char* program;
  const char* working_folder;
  int log_fd;
  int error_fd;  // closed by a successful exec; otherwise it gets errno
  pid_t parent;
};

[[noreturn]] void RunChild(const ChildPlan& plan) {
  sigset_t none;
  sigemptyset(&none);
  int null_fd = ::open("/dev/null", O_RDONLY);
  bool ready = ::setpgid(0, 0) == 0 && ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 &&
               ::sigprocmask(SIG_SETMASK, &none, nullptr) == 0 && ::dup2(null_fd, 0) == 0 &&
               ::dup2(plan.log_fd, 1) == 1 && ::dup2(plan.log_fd, 2) == 2 &&
               (*plan.working_folder == '\0' || ::chdir(plan.working_folder) == 0);
  if (::getppid() != plan.parent) ::_exit(127);  // the parent died before prctl
  if (ready) ::execv(plan.program, plan.argv.data());
  int why = errno;
  if (::write(plan.error_fd, &why, sizeof(why)) < 0) ::_exit(126);
  ::_exit(127);
}

// Forks, and waits until the program runs or is known not to run.
absl::StatusOr<pid_t> Fork(ChildPlan plan) {
  std::array<int, 2> pipe_fds{};
  if (::pipe2(pipe_fds.data(), O_CLOEXEC) != 0) return SystemError("pipe2");
  plan.error_fd = pipe_fds[1];
  plan.parent = ::getpid();
  pid_t pid = ::fork();
  if (pid == 0) RunChild(plan);
  ::close(pipe_fds[1]);
  int why = 0;
  ssize_t count = 0;
  if (pid > 0) {
    do {
      count = ::read(pipe_fds[0], &why, sizeof(why));
    } while (count < 0 && errno == EINTR);
  }
  ::close(pipe_fds[0]);
  if (pid < 0) return SystemError("fork");
  if (count == 0) return pid;
  ::waitpid(pid, nullptr, 0);
  errno = why;
  return SystemError(absl::StrCat("cannot execute ", plan.program));
}

}  // namespace

TempDir::TempDir() {
  path_ = std::filesystem::temp_directory_path().string() + "/syncopate-test-XXXXXX";
  SYNCOPATE_CHECK(::mkdtemp(path_.data()) != nullptr);
}

TempDir::~TempDir() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
  if (error) std::fprintf(stderr, "%s was left behind: %s\n", path_.c_str(), error.message().c_str());
}

absl::StatusOr<int> FreePort() {
  int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return SystemError("socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  bool bound = ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
               ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  absl::Status status = bound ? absl::OkStatus() : SystemError("bind to 127.0.0.1");
  ::close(fd);
  if (!bound) return status;
  return ntohs(address.sin_port);
}

absl::StatusOr<std::unique_ptr<Process>> Process::Start(const Options& options) {
  ChildPlan plan{};
  plan.program = options.program.c_str();
  plan.working_folder = options.working_folder.c_str();
  plan.argv.push_back(const_cast<char*>(plan.program));  // execv has this signature and changes nothing
  for (const std::string& arg : options.args) plan.argv.push_back(const_cast<char*>(arg.c_str()));
  plan.argv.push_back(nullptr);

  plan.log_fd = ::open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (plan.log_fd < 0) return SystemError(absl::StrCat("open ", options.log_path));
  off_t log_start = ::lseek(plan.log_fd, 0, SEEK_END);
  absl::StatusOr<pid_t> pid = Fork(plan);
  ::close(plan.log_fd);
  if (!pid.ok()) return pid.status();

  int pid_fd = OpenPidFd(*pid);
  int watch_fd = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  SYNCOPATE_CHECK(pid_fd >= 0 && watch_fd >= 0);
  SYNCOPATE_CHECK(::inotify_add_watch(watch_fd, options.log_path.c_str(), IN_MODIFY) >= 0);
  return std::unique_ptr<Process>(new Process(*pid, pid_fd, watch_fd, static_cast<size_t>(log_start), options));
}

Process::Process(pid_t pid, int pid_fd, int watch_fd, size_t log_start, Options options)
    : pid_(pid), pid_fd_(pid_fd), watch_fd_(watch_fd), options_(std::move(options)), log_position_(log_start) {}

Process::~Process() {
  // The leader has not been reaped, so the number of the process group still belongs to it.
  ::kill(-pid_, SIGKILL);
  if (WaitExit(kReapWithin).ok()) {
    ::waitpid(pid_, nullptr, WNOHANG);
  } else {
    std::fprintf(stderr, "process %d (%s) does not die\n", pid_, options_.program.c_str());
  }
  ::close(pid_fd_);
  ::close(watch_fd_);
}

void Process::Signal(int number) { ::kill(pid_, number); }
void Process::Kill() { Signal(SIGKILL); }
void Process::Terminate() { Signal(SIGTERM); }
void Process::Interrupt() { Signal(SIGINT); }
void Process::Stop() { Signal(SIGSTOP); }
void Process::Continue() { Signal(SIGCONT); }

bool Process::Running() const { return !Ended().ok(); }

absl::StatusOr<ExitStatus> Process::Ended() const {
  siginfo_t info{};
  // WNOWAIT leaves the zombie, and with it the numbers of the process and the group, until the destructor.
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0) return SystemError("waitid");
  if (info.si_pid == 0) return absl::NotFoundError("it runs");
  if (info.si_code == CLD_EXITED) return ExitStatus{info.si_status, 0};
  return ExitStatus{0, info.si_status};
}

void Process::Watch(absl::Time deadline, bool or_log) const {
  absl::Duration patience = std::clamp(deadline - Now(), absl::ZeroDuration(), kLongestSleep);
  std::array<pollfd, 2> watched = {pollfd{pid_fd_, POLLIN, 0}, pollfd{watch_fd_, POLLIN, 0}};
  ::poll(watched.data(), or_log ? 2 : 1, static_cast<int>(absl::ToInt64Milliseconds(patience)) + 1);
  std::array<char, 4096> events;
  while (or_log && ::read(watch_fd_, events.data(), events.size()) > 0) {
  }
}

absl::StatusOr<ExitStatus> Process::WaitExit(absl::Duration timeout) {
  absl::Time deadline = Now() + timeout;
  while (true) {
    absl::StatusOr<ExitStatus> ended = Ended();
    if (ended.ok()) return ended;
    if (Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(options_.program, " still runs after ",
                                                      absl::FormatDuration(timeout), "; its log ends\n", LogTail()));
    }
    Watch(deadline, /*or_log=*/false);
  }
}

absl::StatusOr<std::string> Process::WaitForLogLine(const std::string& pattern, absl::Duration timeout) {
  const Regex regex(pattern);
  if (!regex.good()) return absl::InvalidArgumentError(absl::StrCat("'", pattern, "' is no regular expression"));
  absl::Time deadline = Now() + timeout;
  while (true) {
    bool ended = !Running();  // asked before the log is read, so that the log has the last line
    std::string log = Log();
    for (size_t end; (end = log.find('\n', log_position_)) != std::string::npos;) {
      std::string line = log.substr(log_position_, end - log_position_);
      log_position_ = end + 1;
      if (regex.Finds(line)) return line;
    }
    std::string missing = absl::StrCat(options_.program, " did not log '", pattern, "'");
    if (ended)
      return absl::FailedPreconditionError(absl::StrCat(missing, " before it ended; its log ends\n", LogTail()));
    if (Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(missing, " within ", absl::FormatDuration(timeout), "; its log ends\n", LogTail()));
    }
    Watch(deadline, /*or_log=*/true);
  }
}

std::string Process::Log() const {
  std::ifstream file(options_.log_path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

std::string Process::LogTail() const {
  constexpr size_t kBytes = 2000;
  std::string log = Log();
  return log.size() > kBytes ? log.substr(log.size() - kBytes) : log;
}

std::vector<pid_t> ProcessesNaming(const std::string& text) {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid) || pid == ::getpid()) continue;
    // read() returns errors as values. A process may end between open and read, and a stream buffer would throw then.
    const int file = ::open((entry.path() / "cmdline").c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    std::string line;
    std::array<char, 4096> part;
    for (ssize_t got = 0; (got = ::read(file, part.data(), part.size())) > 0;) line.append(part.data(), got);
    ::close(file);
    if (absl::StrContains(line, text)) found.push_back(pid);
  }
  return found;
}

}  // namespace syncopate::testing
