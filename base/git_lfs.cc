#include "base/git_lfs.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate {

absl::Status RefuseLfsPointer(absl::string_view beginning, const std::string& path) {
  // https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
  if (!absl::StartsWith(beginning, "version https://git-lfs.github.com/spec/")) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "LFS_POINTER",
               absl::StrCat(path, ": this is a Git LFS pointer; git lfs pull"));
}

}  // namespace syncopate
