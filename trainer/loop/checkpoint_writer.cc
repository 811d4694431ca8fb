#include "trainer/loop/checkpoint_writer.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/reasons.h"
#include "trainer/checkpoint/policy_files.h"

namespace syncopate::trainer {
namespace {

void LogBestStays(const absl::Status& status) {
  if (!status.ok()) SYNCOPATE_LOG(kError, "the best checkpoint stays what it was: %s", status.ToString());
}

void LogNotCopied(const absl::Status& status) {
  if (!status.ok()) SYNCOPATE_LOG(kError, "the state cannot be copied for a checkpoint: %s", status.ToString());
}

}  // namespace

void CheckpointWriter::LoadBest() {
  best_.Load();
  ShowBest();
}

absl::Status CheckpointWriter::Save(const PolicyVersion& version, Done done) {
  const absl::Time begin = Clock::Real()->Now();
  if (const absl::Status before = Wait(); !before.ok()) {
    parts_.phases->Add(LoopPhase::kCheckpoint, Clock::Real()->Now() - begin);
    Record(version, before);
    return before;
  }
  absl::StatusOr<Copied> copied = absl::UnknownError("the weights are not there");
  const absl::Status used = InCopyUse(*parts_.policy, [&] {
    copied = Copy(version);
    return copied.status();
  });
  parts_.phases->Add(LoopPhase::kCheckpoint, Clock::Real()->Now() - begin);
  if (!copied.ok()) {
    const absl::Status why = used.ok() ? copied.status() : used;
    Record(version, why);
    return why;
  }
  // The copy stays valid whatever happens to the weights now, and the other ranks are already writing theirs.
  if (!used.ok()) SYNCOPATE_LOG(kError, "after a copy for a checkpoint: %s", used.ToString());
  thread_.Post([this, copied = *std::move(copied), done = std::move(done)] {
    const absl::StatusOr<std::string> written = Write(copied);
    Record(copied.request.version, written.status());
    done(written);
  });
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckpointWriter::SaveAndWait(const PolicyVersion& version) {
  // Shared with the task, which a slow disk may keep running after this call has given up waiting.
  auto saved = std::make_shared<absl::StatusOr<std::string>>(absl::UnknownError("not written"));
  SYNCOPATE_RETURN_IF_ERROR(Save(version, [saved](const absl::StatusOr<std::string>& name) { *saved = name; }));
  const absl::Time begin = Clock::Real()->Now();
  const absl::Status waited = Wait();
  parts_.phases->Add(LoopPhase::kCheckpoint, Clock::Real()->Now() - begin);
  return waited.ok() ? *saved : waited;
}

absl::StatusOr<CheckpointWriter::Copied> CheckpointWriter::Copy(const PolicyVersion& version) {
  // Looked at again before the rename; here, so that a trainer that has been replaced makes no further step.
  SYNCOPATE_RETURN_IF_ERROR(CheckNotFenced());
  SYNCOPATE_RETURN_IF_ERROR(parts_.publisher->CheckWeights(version));
  SYNCOPATE_ASSIGN_OR_RETURN(const TrainingData::DataSnapshot data, parts_.data->Snapshot());
  Copied copied;
  copied.oldest_needed_record = data.oldest_needed_record;
  CheckpointStore::SaveRequest& request = copied.request;
  request.version = version;
  // The copy is made before the version's digests are there; they say whether all weights are finite.
  request.last_look = [this, version]() -> absl::Status {
    SYNCOPATE_RETURN_IF_ERROR(parts_.publisher->AwaitFinite(version));
    return CheckNotFenced();
  };
  std::function<absl::Status()> go_on;
  if (parts_.ranks != nullptr) {
    // The folder must exist before the other ranks are told to write into it.
    SYNCOPATE_ASSIGN_OR_RETURN(request.folder, parts_.store->BeginFolder(version));
    request.await_others = [ranks = parts_.ranks, folder = request.folder] { return ranks->AwaitSaved(folder); };
    go_on = [ranks = parts_.ranks] { return ranks->lost(); };
  }
  const absl::StatusOr<std::shared_ptr<const PolicySnapshot>> snapshot = parts_.policy->TakeSnapshot(request.folder);
  if (snapshot.ok()) {
    copied.snapshot = *snapshot;
    request.files = PolicyFiles(*snapshot, go_on);
    request.ranks = (*snapshot)->world;
  } else if (parts_.ranks == nullptr) {
    return snapshot.status();
  } else {
    // The other ranks are already writing: this waits for them before the folder is removed, as if our files had
    // failed.
    request.files["none"] = [why = snapshot.status()](const CheckpointStore::ByteSink&) { return why; };
  }
  request.files[kDataFile] = data.bytes;
  return copied;
}

absl::StatusOr<std::string> CheckpointWriter::Write(const Copied& copied) {
  const PolicyVersion& version = copied.request.version;
  // The copy is finished first, as the update of the step under way waits for it. An error is only logged here: the
  // write of the files finds it again, and other ranks must be waited for even so.
  if (copied.snapshot != nullptr) LogNotCopied(copied.snapshot->FinishCopy());
  SYNCOPATE_RETURN_IF_ERROR(parts_.store->Save(copied.request));
  saved_step_ = version.step;
  // Saving a version twice gives one checkpoint.
  if (!saved_here_.empty() && saved_here_.back().version == version) return version.ToString();
  saved_here_.push_back({version, copied.oldest_needed_record});
  LogBestStays(best_.AddSaved(version));
  ShowBest();
  Prune();
  return version.ToString();
}

void CheckpointWriter::AddScore(const BestCheckpoint::Score& score) {
  thread_.Post([this, score] {
    // Another trainer's best is not ours to replace.
    if (!CheckNotFenced().ok()) return;
    LogBestStays(best_.AddScore(score));
    ShowBest();
  });
}

void CheckpointWriter::Record(const PolicyVersion& version, const absl::Status& saved) {
  parts_.control->RecordCheckpoint(version, saved);
  parts_.observer->RecordCheckpoint(version, saved);
}

void CheckpointWriter::ShowBest() {
  const std::optional<BestCheckpoint::Score>& best = best_.best();
  if (best.has_value()) parts_.control->SetBestCheckpoint(best->version, best->reward_mean);
}

// A file system cannot refuse a writer, so the right to write is checked right before each use: by the order to stop,
// by the epoch that was recorded last, and by the newest checkpoint in the folder.
absl::Status CheckpointWriter::CheckNotFenced() const {
  const absl::Status fenced = Error(absl::StatusCode::kFailedPrecondition, reason::kFenced,
                                    "a newer trainer writes to this run; this one must not save");
  if (parts_.control->fenced()) return fenced;
  SYNCOPATE_ASSIGN_OR_RETURN(int64_t newest, parts_.newest_epoch());
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<PolicyVersion> there, parts_.store->List());
  if (!there.empty()) newest = std::max(newest, there.back().epoch);
  return newest <= epoch_ ? absl::OkStatus() : fenced;
}

void CheckpointWriter::Prune() {
  absl::StatusOr<std::vector<PolicyVersion>> pruned =
      parts_.store->Prune(keep_, best_.best().has_value() ? best_.best()->version : PolicyVersion());
  if (!pruned.ok()) SYNCOPATE_LOG(kWarning, "old checkpoints stay: %s", pruned.status().ToString());
  while (static_cast<int>(saved_here_.size()) > keep_) saved_here_.pop_front();
  // A checkpoint of an earlier incarnation may need older records than this one knows of: records are pruned only once
  // this incarnation wrote all checkpoints that are kept.
  if (static_cast<int>(saved_here_.size()) < keep_) return;
  uint64_t oldest = saved_here_.front().oldest_needed_record;
  for (const Saved& saved : saved_here_) oldest = std::min(oldest, saved.oldest_needed_record);
  parts_.data->PruneLog(oldest);
}

}  // namespace syncopate::trainer
