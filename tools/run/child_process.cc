#include "tools/run/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::run {
namespace {

constexpr int kCannotExecute = 127;

absl::Status CannotStart(const Launch& launch, const std::string& what) {
  return Error(absl::StatusCode::kUnavailable, errno == ENOSPC || errno == EDQUOT ? reason::kNoSpace : "CANNOT_START",
               absl::StrCat("cannot start ", launch.binary, ": ", what, ": ", std::strerror(errno)));
}

// Between fork and exec only async-signal-safe calls are allowed: another thread may have locked any mutex.
[[noreturn]] void BecomeChild(const char* binary, char* const* arguments, char* const* environment, int log, int null,
                              pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kCannotExecute);  // the parent died before prctl
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  ::dup2(null, STDIN_FILENO);
  if (log >= 0) {
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
  }
  ::close_range(STDERR_FILENO + 1, UINT_MAX, 0);
  ::execve(binary, arguments, environment);
  constexpr char kMessage[] = "cannot execute ";
  if (::write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1) < 0 ||
      ::write(STDERR_FILENO, binary, std::strlen(binary)) < 0 || ::write(STDERR_FILENO, "\n", 1) < 0) {
    ::_exit(kCannotExecute);
  }
  ::_exit(kCannotExecute);
}

// This process's environment; entries of `added` replace those with the same name.
std::vector<char*> EnvironmentWith(std::vector<std::string>* added) {
  std::vector<char*> all;
  for (char** one = environ; *one != nullptr; ++one) {
    const absl::string_view text = *one;
    const absl::string_view name = text.substr(0, text.find('='));
    const bool replaced = std::any_of(added->begin(), added->end(), [name](const std::string& other) {
      return absl::StartsWith(other, absl::StrCat(name, "="));
    });
    if (!replaced) all.push_back(*one);
  }
  for (std::string& one : *added) all.push_back(one.data());
  all.push_back(nullptr);
  return all;
}

}  // namespace

absl::StatusOr<pid_t> StartChild(const Launch& launch) {
  const bool has_log = !launch.log.empty();
  int log = has_log ? ::open(launch.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
  if (has_log && log < 0) return CannotStart(launch, absl::StrCat("log ", launch.log));
  int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  std::vector<std::string> words = {launch.binary};
  words.insert(words.end(), launch.arguments.begin(), launch.arguments.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::vector<std::string> added = launch.environment;
  std::vector<char*> environment = EnvironmentWith(&added);
  pid_t parent = ::getpid();
  pid_t pid = ::fork();
  if (pid == 0) BecomeChild(launch.binary.c_str(), arguments.data(), environment.data(), log, null, parent);
  absl::Status status = pid < 0 ? CannotStart(launch, "fork") : absl::OkStatus();
  if (has_log) ::close(log);
  ::close(null);
  if (!status.ok()) return status;
  ::setpgid(pid, pid);  // parent and child both call it, whichever runs first
  return pid;
}

absl::Status CheckBinaries(const std::string& binary_dir, const std::vector<std::string>& roles) {
  for (const std::string& role : roles) {
    std::string binary = (std::filesystem::path(binary_dir) / absl::StrCat("syncopate-", role)).string();
    if (::access(binary.c_str(), X_OK) == 0) continue;
    return Error(absl::StatusCode::kNotFound, "NO_BINARY",
                 absl::StrCat(binary, ": ", std::strerror(errno), "; the daemons belong beside syncopate itself"));
  }
  return absl::OkStatus();
}

std::string OwnBinaryFolder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

}  // namespace syncopate::run
