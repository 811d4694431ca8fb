#include "trainer/checkpoint/shard_saver.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer/checkpoint/policy_files.h"

namespace syncopate::trainer {

void ShardSaver::Save(const std::string& folder, absl::StatusOr<std::shared_ptr<const PolicySnapshot>> snapshot) {
  thread_.Post([this, folder, snapshot = std::move(snapshot)] {
    tell_(folder, snapshot.ok() ? Write(folder, *snapshot) : snapshot.status());
  });
}

absl::StatusOr<CheckpointStore::Files> ShardSaver::Write(const std::string& folder,
                                                         const std::shared_ptr<const PolicySnapshot>& snapshot) const {
  SYNCOPATE_RETURN_IF_ERROR(snapshot->FinishCopy());  // first of all, as the update of the step under way waits for it
  SYNCOPATE_RETURN_IF_ERROR(CheckFileName(folder));
  const std::string path = JoinPath(root_, folder);
  if (const absl::Status there = files_->List(path).status(); absl::IsNotFound(there)) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "FOLDER_NOT_SHARED",
        absl::StrCat("there is no ", path,
                     ", which rank 0 has made; run.dir, and checkpoint.dir if it is set, must be the same folders "
                     "for all ranks"));
  }
  auto go_on = [this]() -> absl::Status {
    return aborted_.load() ? Error(absl::StatusCode::kCancelled, "STOPPED", "the rank ends") : absl::OkStatus();
  };
  SYNCOPATE_ASSIGN_OR_RETURN(CheckpointStore::Files written,
                             CheckpointStore::WriteFiles(files_.get(), path, PolicyFiles(snapshot, go_on)));
  SYNCOPATE_RETURN_IF_ERROR(files_->SyncDir(path));
  return written;
}

}  // namespace syncopate::trainer
