#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/status.h"
#include "tools/doctor/looks.h"
#include "tools/run/child_process.h"

namespace syncopate::doctor {
namespace {

constexpr int kDeadlineMs = 20'000;  // loading libtorch from a cold disk takes seconds
constexpr int64_t kMaxLogBytes = 1 << 20;

absl::Status DoesNotStart(const std::string& what) {
  return Error(absl::StatusCode::kFailedPrecondition, "DOES_NOT_START", what);
}

// Waits for a child and returns how it ended; a child that does not end is killed.
absl::Status AwaitEnd(pid_t child, const std::string& log) {
  const int descriptor = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
  pollfd ended{descriptor, POLLIN, 0};
  const bool in_time = descriptor >= 0 && ::poll(&ended, 1, kDeadlineMs) == 1;
  if (descriptor >= 0) ::close(descriptor);
  if (!in_time) ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!in_time) return DoesNotStart(absl::StrCat("no end within ", kDeadlineMs / 1000, " s"));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  const std::string said = ReadFile(FileSystem::Real(), log, kMaxLogBytes).value_or("");
  return DoesNotStart(said.empty() ? absl::StrCat("ended with status ", status)
                                   : std::string(absl::StripAsciiWhitespace(said.substr(0, said.find('\n')))));
}

absl::Status TryToStart(const std::string& path) {
  std::string folder = "/tmp/syncopate-doctor-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return DoesNotStart("no temporary folder for its output under /tmp");
  const std::string log = JoinPath(folder, "log");
  const absl::Status status = RunToEnd(path, {"--help"}, log);
  FileSystem::Real()->RemoveTree(folder).IgnoreError();  // it is under /tmp
  return status;
}

}  // namespace

absl::Status RunToEnd(const std::string& path, const std::vector<std::string>& arguments, const std::string& log) {
  if (::access(path.c_str(), X_OK) != 0) return DoesNotStart("it is not there");
  auto child = run::StartChild({path, arguments, log});
  return child.ok() ? AwaitEnd(*child, log) : child.status();
}

ProgramFacts InspectProgram(const std::string& path) { return {path, TryToStart(path)}; }

}  // namespace syncopate::doctor
