#include "tools/k8s/kubectl.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"

extern char** environ;

namespace syncopate::k8s {
namespace {

constexpr int64_t kMaxOutput = 64 << 20;
// The interval of polling waitpid(), which has no deadline of its own.
constexpr int kPollMs = 5;

struct Ended {
  int wait_status = 0;
  bool stuck = false;
};

absl::StatusOr<std::string> MakeTemporaryFolder() {
  std::string folder = (std::filesystem::temp_directory_path() / "syncopate-k8s-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) {
    return Error(absl::StatusCode::kPermissionDenied, "NOT_WRITABLE",
                 absl::StrCat(folder, " cannot be made: ", std::strerror(errno)));
  }
  return folder;
}

// The child writes its output to files, because a pipe could fill up while nothing reads it.
absl::StatusOr<pid_t> Start(std::vector<std::string> words, const std::string& output, const std::string& errors) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  absl::Cleanup free = [&] { ::posix_spawn_file_actions_destroy(&actions); };
  // The child must not read from the terminal.
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT, 0600);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, errors.c_str(), O_WRONLY | O_CREAT, 0600);
  pid_t pid = 0;
  const int failure = ::posix_spawnp(&pid, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
  if (failure == 0) return pid;
  return Error(absl::StatusCode::kNotFound, "NO_KUBECTL",
               absl::StrCat(words[0], " cannot be started: ", std::strerror(failure),
                            "; manifests are made by `kubectl kustomize`: install kubectl 1.27 or newer, or put it on "
                            "PATH"));
}

Ended AwaitEnd(pid_t pid, absl::Duration deadline) {
  const absl::Time until = Clock::Real()->Now() + deadline;
  Ended ended;
  while (::waitpid(pid, &ended.wait_status, WNOHANG) == 0) {
    if (Clock::Real()->Now() >= until) {
      ended.stuck = true;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, &ended.wait_status, 0);
      break;
    }
    ::poll(nullptr, 0, kPollMs);
  }
  return ended;
}

}  // namespace

absl::Status WriteTree(const FileTree& tree, const std::string& folder) {
  for (const auto& [path, text] : tree) {
    const std::string target = JoinPath(folder, path);
    SYNCOPATE_RETURN_IF_ERROR(FileSystem::Real()->CreateDirs(target.substr(0, target.rfind('/'))));
    std::ofstream file(target, std::ios::binary | std::ios::trunc);
    file << text << std::flush;
    if (!file) return Error(absl::StatusCode::kPermissionDenied, "NOT_WRITABLE", target + " cannot be written");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Kubectl::Kustomize(const FileTree& tree, const std::string& folder) const {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string scratch, MakeTemporaryFolder());
  absl::Cleanup remove = [&] {
    std::error_code ignored;
    std::filesystem::remove_all(scratch, ignored);
  };
  const std::string root = JoinPath(scratch, "deploy"), output = JoinPath(scratch, "output");
  const std::string errors = JoinPath(scratch, "errors");
  SYNCOPATE_RETURN_IF_ERROR(WriteTree(tree, root));
  SYNCOPATE_ASSIGN_OR_RETURN(const pid_t pid,
                             Start({options_.program, "kustomize", JoinPath(root, folder)}, output, errors));
  const Ended ended = AwaitEnd(pid, options_.deadline);
  if (ended.stuck) {
    return Error(
        absl::StatusCode::kDeadlineExceeded, "KUBECTL_STUCK",
        absl::StrCat(options_.program, " kustomize did not end within ", absl::FormatDuration(options_.deadline)));
  }
  if (ended.wait_status != 0) {
    // kubectl's messages name files of the temporary copy: without that folder's name the paths are those of the user's
    // tree.
    SYNCOPATE_ASSIGN_OR_RETURN(const std::string said, ReadFile(FileSystem::Real(), errors, kMaxOutput));
    return Error(absl::StatusCode::kInvalidArgument, "BAD_KUSTOMIZATION",
                 absl::StrCat(options_.program, " kustomize: ",
                              absl::StrReplaceAll(absl::StripAsciiWhitespace(said), {{root + "/", ""}})));
  }
  return ReadFile(FileSystem::Real(), output, kMaxOutput);
}

}  // namespace syncopate::k8s
