#include "tools/run/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/status.h"
#include "services/config/run_config.h"
#include "tools/run/launch.h"

namespace syncopate::run {
namespace {

namespace fs = std::filesystem;

// Ignores errors: a path that cannot be examined, such as a link to itself, counts as missing.
bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string DefaultPath(const std::string& name, const std::string& time) {
  fs::path path = fs::path("runs") / absl::StrCat(name, "-", time);
  fs::path unused = path;
  std::error_code ignored;
  // A dangling link also occupies its name.
  for (int i = 2; fs::exists(fs::symlink_status(unused, ignored)); ++i) unused = absl::StrCat(path.string(), "-", i);
  return unused.string();
}

bool HoldsSomething(const std::string& path) {
  std::error_code error;
  return fs::directory_iterator(path, error) != fs::directory_iterator() || (Exists(path) && error);
}

absl::StatusOr<int> Lock(const std::string& path) {
  std::string file = (fs::path(path) / "run.lock").string();
  int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    return Error(absl::StatusCode::kPermissionDenied, "NOT_WRITABLE",
                 absl::StrCat("cannot write in ", path, ": ", std::strerror(errno), "; choose another run.dir"));
  }
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return descriptor;
  ::close(descriptor);
  return Error(absl::StatusCode::kFailedPrecondition, "RUN_DIR_BUSY",
               absl::StrCat("another syncopate run works in ", path, "; stop it first, or choose another run.dir"));
}

// Removes files of an earlier incarnation that this one could mistake for its own.
void RemoveTraces(const std::string& path) {
  std::error_code ignored;
  for (const char* name : {"endpoints", "endpoints.json", config::kNextConfigFile}) {
    fs::remove_all(fs::path(path) / name, ignored);
  }
}

}  // namespace

absl::StatusOr<RunDirectory> RunDirectory::Claim(const v1::RunSection& run, const std::string& time) {
  std::string path = run.dir().empty() ? DefaultPath(run.name(), time) : run.dir();
  std::error_code why;
  if (fs::status(path, why).type() == fs::file_type::none) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_RUN_DIR",
                 absl::StrCat(path, " cannot be looked at: ", why.message(), "; choose another run.dir"));
  }
  bool holds_run = Exists(ResolvedConfigPath(path)) || Exists(fs::path(path) / "state" / "trainer");
  // An empty directory is a run that has not begun: a supervisor always starts it with resume.
  if (run.resume() && !holds_run && HoldsSomething(path)) {
    return Error(absl::StatusCode::kNotFound, "NOT_A_RUN",
                 absl::StrCat(path, " contains files, but no run to resume; choose another run.dir"));
  }
  if (!run.resume() && HoldsSomething(path)) {
    const std::string what = holds_run ? absl::StrCat(" contains a run; resume it with `syncopate run --resume ", path,
                                                      "`, or choose another run.dir")
                                       : " is not empty, and what it contains is no run; choose another run.dir";
    return Error(absl::StatusCode::kFailedPrecondition, "RUN_DIR_TAKEN", absl::StrCat(path, what));
  }
  absl::Status made = FileSystem::Real()->CreateDirs((fs::path(path) / "logs").string());
  if (!made.ok()) return Annotate(made, "the run directory");
  SYNCOPATE_ASSIGN_OR_RETURN(int lock, Lock(path));
  RemoveTraces(path);
  return RunDirectory(path, lock);
}

RunDirectory::~RunDirectory() {
  if (lock_ >= 0) ::close(lock_);
}

RunDirectory::RunDirectory(RunDirectory&& other) noexcept
    : path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)) {}

std::string RunDirectory::Path(const std::string& name) const { return (fs::path(path_) / name).string(); }

}  // namespace syncopate::run
