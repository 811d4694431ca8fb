#include "synchronizer/versions/version_ledger.h"

#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "base/reasons.h"
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

absl::Status DigestChanged(PolicyVersion version) {
  return Refused("DIGEST_CHANGED", absl::StrFormat("version %s was published with other bits: a version has one "
                                                   "digest for ever; publish the new weights as a new version",
                                                   version.ToString()));
}

}  // namespace

// Puts the parts of a version together that an earlier build has published one by one.
class PartsOfVersions {
 public:
  // The version of `part`, once it is the last one that was missing.
  std::optional<PublishedVersion> Add(const PublishedPart& part) {
    std::map<int32_t, PublishedPart>& ranks = parts_[part.version];
    ranks[part.rank] = part;
    if (static_cast<int32_t>(ranks.size()) != part.world) return std::nullopt;
    PublishedVersion whole;
    whole.version = part.version;
    for (const auto& [rank, one] : ranks) {
      whole.bucket_digests.insert(whole.bucket_digests.end(), one.bucket_digests.begin(), one.bucket_digests.end());
    }
    whole.digest = CombineDigests(whole.bucket_digests);
    whole.unix_seconds = part.unix_seconds;
    whole.subset = part.subset;
    return whole;
  }

 private:
  std::map<PolicyVersion, std::map<int32_t, PublishedPart>> parts_;  // by rank
};

// No synchronizer ever writes records that these checks refuse. Continuing from such records could allocate an epoch
// twice, or give one version two digests.
absl::StatusOr<VersionLedger> VersionLedger::Restore(const std::vector<LedgerRecord>& records) {
  VersionLedger ledger;
  PartsOfVersions parts;
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
      ledger.RaiseEpoch(epoch->epoch);
    } else if (const auto* completed = std::get_if<CompletedRecord>(&record)) {
      if (completed->epoch != ledger.epoch_ || completed->epoch == 0) {
        return BadLedger(absl::StrFormat("epoch %d ends the run in epoch %d", completed->epoch, ledger.epoch_));
      }
      ledger.completed_ = true;
    } else {
      const auto* published = std::get_if<PublishedVersion>(&record);
      const auto* part = std::get_if<PublishedPart>(&record);
      PolicyVersion version = published != nullptr ? published->version : part->version;
      bool known_epoch = version.epoch >= 1 && version.epoch <= ledger.epoch_;
      // Parts may come in any order of ranks. Each part is later than the newest complete version.
      bool in_order = ledger.versions_.empty() || ledger.versions_.back().version < version;
      if (!known_epoch || !in_order) {
        return BadLedger(absl::StrFormat("version %s is out of place", version.ToString()));
      }
      if (published != nullptr) ledger.Add(*published);
      if (part == nullptr) continue;
      if (std::optional<PublishedVersion> whole = parts.Add(*part)) ledger.Add(*std::move(whole));
    }
  }
  return ledger;
}

std::vector<LedgerRecord> VersionLedger::Snapshot() const {
  std::vector<LedgerRecord> records;
  if (!run_id_.empty()) records.emplace_back(RunIdRecord{run_id_});
  if (epoch_ > 0) records.emplace_back(EpochRecord{epoch_});
  records.insert(records.end(), versions_.begin(), versions_.end());
  // Written last: an epoch record after it would clear the completion.
  if (completed_) records.emplace_back(CompletedRecord{epoch_});
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
  completed_ = false;
  return EpochRecord{epoch};
}

absl::StatusOr<std::optional<LedgerRecord>> VersionLedger::Complete(const PolicyVersion& last) {
  SYNCOPATE_RETURN_IF_ERROR(CheckEpoch(last));
  // Repeating it is no error: the trainer repeats it until it gets an answer.
  if (std::exchange(completed_, true)) return std::optional<LedgerRecord>();
  return std::optional<LedgerRecord>(CompletedRecord{epoch_});
}

absl::Status VersionLedger::CheckEpoch(PolicyVersion version) const {
  if (version.epoch < epoch_) {
    return Error(
        absl::StatusCode::kFailedPrecondition, reason::kFenced,
        absl::StrFormat("version %s comes too late: a newer trainer holds epoch %d", version.ToString(), epoch_),
        {{"epoch", absl::StrFormat("%d", epoch_)}});
  }
  if (version.epoch == epoch_ && !version.IsNone() && version.step >= 0) return absl::OkStatus();
  return Refused("EPOCH_UNKNOWN", absl::StrFormat("version %s is of no epoch that was allocated (newest: %d); join "
                                                  "before publishing",
                                                  version.ToString(), epoch_));
}

absl::Status VersionLedger::CheckOrder(PolicyVersion version) const {
  if (newest() == nullptr || version > newest()->version) return absl::OkStatus();
  return Refused("VERSION_ORDER", absl::StrFormat("version %s is older than the newest, %s", version.ToString(),
                                                  newest()->version.ToString()));
}

void VersionLedger::Add(PublishedVersion published) {
  versions_.push_back(std::move(published));
  if (versions_.size() > kKept) versions_.pop_front();
}

absl::StatusOr<std::optional<LedgerRecord>> VersionLedger::Publish(const PublishedVersion& published) {
  const PolicyVersion& version = published.version;
  SYNCOPATE_RETURN_IF_ERROR(CheckEpoch(version));
  if (const PublishedVersion* known = Find(version)) {
    // The trainer repeats a publication whose answer was lost: nothing is written, and the answer is the same.
    if (known->bucket_digests == published.bucket_digests) return std::optional<LedgerRecord>();
    return DigestChanged(version);
  }
  SYNCOPATE_RETURN_IF_ERROR(CheckOrder(version));
  Add(published);
  return std::optional<LedgerRecord>(published);
}

absl::Status VersionLedger::CheckServed(PolicyVersion served, uint64_t digest) const {
  if (served.IsNone()) return absl::OkStatus();
  if (const PublishedVersion* known = Find(served)) {
    if (known->digest == digest) return absl::OkStatus();
    return Refused("WRONG_DIGEST",
                   absl::StrFormat("it serves other bits than were published as %s; start a new process, which gets "
                                   "them, and look at the memory of its host if that happens again",
                                   served.ToString()));
  }
  // The version is too old to be remembered: there is no digest to compare with.
  if (!versions_.empty() && served < versions_.front().version) return absl::OkStatus();
  return Error(absl::StatusCode::kNotFound, "UNPUBLISHED_VERSION",
               absl::StrFormat("it reports that it serves %s, which no trainer has published", served.ToString()));
}

const PublishedVersion* VersionLedger::Find(PolicyVersion version) const {
  for (const PublishedVersion& known : versions_) {
    if (known.version == version) return &known;
  }
  return nullptr;
}

}  // namespace syncopate::synchronizer
