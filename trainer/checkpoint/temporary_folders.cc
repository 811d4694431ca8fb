#include "trainer/checkpoint/temporary_folders.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/uuid.h"

namespace syncopate::trainer {
namespace {

constexpr absl::string_view kTemporaryPrefix = ".tmp-";

}  // namespace

std::string NewTemporaryName(absl::string_view what) {
  return absl::StrCat(kTemporaryPrefix, what, "-", RandomUuid().substr(0, 8));
}

absl::Status RemoveTemporaryFolders(FileSystem* files, const std::string& root) {
  const absl::StatusOr<std::vector<std::string>> names = files->List(root);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  SYNCOPATE_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, kTemporaryPrefix)) continue;
    SYNCOPATE_LOG(kInfo, "removing %s, left by a save that did not end", JoinPath(root, name));
    // A trainer that was taken for dead may still be writing there, and may give the folder its final name at any
    // moment. The rename takes the folder from that trainer: either it is whole by then, or it never is.
    const std::string aside = JoinPath(root, NewTemporaryName("removed"));
    const absl::Status taken = files->Rename(JoinPath(root, name), aside);
    if (absl::IsNotFound(taken)) continue;
    const absl::Status removed = taken.ok() ? files->RemoveTree(aside) : taken;
    if (!removed.ok()) SYNCOPATE_LOG(kWarning, "%s stays until the next start: %s", name, removed.message());
  }
  return absl::OkStatus();
}

}  // namespace syncopate::trainer
