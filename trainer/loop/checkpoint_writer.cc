#include "trainer/loop/checkpoint_writer.h"

#include <algorithm>
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

}  // namespace

absl::StatusOr<std::string> CheckpointWriter::Save(const PolicyVersion& version) {
  const absl::Status written = InUse(*parts_.policy, [&] { return Write(version); });
  parts_.observer->RecordCheckpoint(version, written);
  SYNCOPATE_RETURN_IF_ERROR(written);
  return version.ToString();
}

absl::Status CheckpointWriter::Write(const PolicyVersion& version) {
  const absl::Time begin = Clock::Real()->Now();
  SYNCOPATE_RETURN_IF_ERROR(parts_.publisher->CheckWeights(version));
  SYNCOPATE_ASSIGN_OR_RETURN(const TrainingData::DataSnapshot data, parts_.data->Snapshot());
  CheckpointStore::SaveRequest request;
  request.version = version;
  request.files = PolicyFiles(*parts_.policy);
  request.files[kDataFile] = data.bytes;
  request.last_look = [this] { return CheckNotFenced(); };
  const absl::Status saved = parts_.store->Save(request);
  parts_.phases->Add(LoopPhase::kCheckpoint, Clock::Real()->Now() - begin);
  SYNCOPATE_RETURN_IF_ERROR(saved);
  parts_.control->SetLastCheckpoint(version.ToString());
  saved_step_ = version.step;
  // The same one again is still one checkpoint.
  if (!saved_here_.empty() && saved_here_.back().version == version) return absl::OkStatus();
  saved_here_.push_back({version, data.oldest_needed_record});
  LogBestStays(best_.AddSaved(version));
  Prune();
  return absl::OkStatus();
}

void CheckpointWriter::AddScore(const BestCheckpoint::Score& score) {
  // Another trainer's best is not ours to replace.
  if (CheckNotFenced().ok()) LogBestStays(best_.AddScore(score));
}

// A file system cannot refuse a writer, so the right to write is looked at right before it is used: what was ordered,
// the epoch that was written down last, and the newest checkpoint there is.
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
  // A checkpoint of an earlier life may need older records than we know of: prune only when all that are kept are ours.
  if (static_cast<int>(saved_here_.size()) < keep_) return;
  uint64_t oldest = saved_here_.front().oldest_needed_record;
  for (const Saved& saved : saved_here_) oldest = std::min(oldest, saved.oldest_needed_record);
  parts_.data->PruneLog(oldest);
}

}  // namespace syncopate::trainer
