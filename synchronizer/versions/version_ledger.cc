#include "synchronizer/versions/version_ledger.h"

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace syncopate::synchronizer {
namespace {

absl::Status Refused(absl::string_view reason, const std::string& message) {
  return Error(absl::StatusCode::kFailedPrecondition, reason, message);
}

absl::Status BadLedger(const std::string& message) {
  return Error(absl::StatusCode::kDataLoss, "BAD_LEDGER",
               message + "; the state folder was damaged or mixed with another run's");
}

}  // namespace

absl::StatusOr<VersionLedger> VersionLedger::Restore(const std::vector<LedgerRecord>& records) {
  VersionLedger ledger;
  for (const LedgerRecord& record : records) {
    if (const auto* run = std::get_if<RunIdRecord>(&record)) {
      if (!ledger.run_id_.empty() && ledger.run_id_ != run->run_id) {
        return BadLedger(absl::StrFormat("it names the runs %s and %s", ledger.run_id_, run->run_id));
      }
      ledger.run_id_ = run->run_id;
    } else if (const auto* epoch = std::get_if<EpochRecord>(&record)) {
      if (epoch->epoch <= ledger.epoch_) {
        return BadLedger(absl::StrFormat("epoch %d follows epoch %d", epoch->epoch, ledger.epoch_));
      }
      ledger.epoch_ = epoch->epoch;
    } else {
      const auto& published = std::get<PublishedVersion>(record);
      bool known_epoch = published.version.epoch >= 1 && published.version.epoch <= ledger.epoch_;
      bool in_order = ledger.versions_.empty() || ledger.versions_.back().version < published.version;
      if (!known_epoch || !in_order) {
        return BadLedger(absl::StrFormat("version %s is out of place", published.version.ToString()));
      }
      ledger.versions_.push_back(published);
      if (ledger.versions_.size() > kKept) ledger.versions_.pop_front();
    }
  }
  return ledger;
}

std::vector<LedgerRecord> VersionLedger::Snapshot() const {
  std::vector<LedgerRecord> records;
  if (!run_id_.empty()) records.emplace_back(RunIdRecord{run_id_});
  if (epoch_ > 0) records.emplace_back(EpochRecord{epoch_});
  records.insert(records.end(), versions_.begin(), versions_.end());
  return records;
}

LedgerRecord VersionLedger::SetRunId(const std::string& run_id) {
  run_id_ = run_id;
  return RunIdRecord{run_id};
}

absl::Status VersionLedger::CheckRun(const std::string& run_id) const {
  if (run_id.empty() || run_id == run_id_) return absl::OkStatus();
  return Refused("WRONG_RUN", absl::StrFormat("run %s is not this run (%s); point the member at its own synchronizer",
                                              run_id, run_id_));
}

LedgerRecord VersionLedger::RaiseEpoch(int64_t epoch) {
  SYNCOPATE_CHECK(epoch > epoch_);
  epoch_ = epoch;
  return EpochRecord{epoch};
}

absl::StatusOr<std::optional<LedgerRecord>> VersionLedger::Publish(const PublishedVersion& published) {
  const PolicyVersion& version = published.version;
  if (version.epoch < epoch_) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "FENCED",
        absl::StrFormat("version %s comes too late: a newer trainer holds epoch %d", version.ToString(), epoch_),
        {{"epoch", absl::StrFormat("%d", epoch_)}});
  }
  if (version.epoch > epoch_ || version.IsNone() || version.step < 0) {
    return Refused("EPOCH_UNKNOWN", absl::StrFormat("version %s is of no epoch that was allocated (newest: %d); join "
                                                    "before publishing",
                                                    version.ToString(), epoch_));
  }
  if (const PublishedVersion* known = Find(version)) {
    if (known->bucket_digests == published.bucket_digests) return std::optional<LedgerRecord>();
    return Refused("DIGEST_CHANGED", absl::StrFormat("version %s was published with other bits: a version has one "
                                                     "digest for ever; publish the new weights as a new version",
                                                     version.ToString()));
  }
  if (newest() != nullptr && version < newest()->version) {
    return Refused("VERSION_ORDER", absl::StrFormat("version %s is older than the newest, %s", version.ToString(),
                                                    newest()->version.ToString()));
  }
  versions_.push_back(published);
  if (versions_.size() > kKept) versions_.pop_front();
  return std::optional<LedgerRecord>(published);
}

const PublishedVersion* VersionLedger::Find(PolicyVersion version) const {
  for (const PublishedVersion& known : versions_) {
    if (known.version == version) return &known;
  }
  return nullptr;
}

}  // namespace syncopate::synchronizer
