#include "bench/process/work_dir.h"

#include <stdlib.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::bench {

absl::StatusOr<WorkDir> WorkDir::Make() {
  std::string path = (std::filesystem::temp_directory_path() / "syncopate-bench-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr) {
    return Error(absl::StatusCode::kUnavailable, "CANNOT_START", absl::StrCat("cannot make the folder ", path));
  }
  return WorkDir(std::move(path));
}

WorkDir::WorkDir(WorkDir&& other) noexcept : path_(std::exchange(other.path_, "")), keep_(other.keep_) {}

WorkDir::~WorkDir() {
  std::error_code error;
  if (!path_.empty() && !keep_) std::filesystem::remove_all(path_, error);
}

}  // namespace syncopate::bench
