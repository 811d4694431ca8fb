#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "synchronizer/messages.h"

namespace syncopate::synchronizer {

// The records that must survive a restart of the synchronizer: one for each change.
struct RunIdRecord {
  std::string run_id;
  friend bool operator==(const RunIdRecord&, const RunIdRecord&) = default;
};
struct EpochRecord {
  int64_t epoch = 0;
  friend bool operator==(const EpochRecord&, const EpochRecord&) = default;
};
// One trainer rank's part of a version, in the logs of earlier builds, which published a version by parts:
// bucket_digests are the version's digests from index `begin` on. It is read and never written.
struct PublishedPart {
  PolicyVersion version;
  int32_t rank = 0;
  int32_t world = 1;
  int64_t begin = 0;
  std::vector<uint64_t> bucket_digests;
  double unix_seconds = 0;
  Subset subset = {};
  friend bool operator==(const PublishedPart&, const PublishedPart&) = default;
};
// The trainer of that epoch has reported that the run is complete.
struct CompletedRecord {
  int64_t epoch = 0;
  friend bool operator==(const CompletedRecord&, const CompletedRecord&) = default;
};
using LedgerRecord = std::variant<RunIdRecord, EpochRecord, PublishedVersion, PublishedPart, CompletedRecord>;

// Knows which policy versions exist, which epoch is the newest, and which run this is. Sans-IO and deterministic: a
// change is returned as a record. The owner makes the record durable before it reports the change to any member.
class VersionLedger {
 public:
  static constexpr size_t kKept = 100;  // number of newest versions that are remembered

  VersionLedger() = default;
  // The state after `records`, in the order they were written. DATA_LOSS reason BAD_LEDGER if they contradict each
  // other: two run ids, an epoch that falls, a version or a completion of an epoch that was never allocated.
  static absl::StatusOr<VersionLedger> Restore(const std::vector<LedgerRecord>& records);
  // The shortest list of records with the same Restore().
  std::vector<LedgerRecord> Snapshot() const;

  // "" until SetRunId.
  const std::string& run_id() const { return run_id_; }
  LedgerRecord SetRunId(const std::string& run_id);
  // OK for "" (a first join) and for this run; else FAILED_PRECONDITION reason WRONG_RUN.
  absl::Status CheckRun(const std::string& run_id) const;

  int64_t epoch() const { return epoch_; }
  // Requires `epoch` > epoch(). A run that was complete continues.
  LedgerRecord RaiseEpoch(int64_t epoch);

  // Whether the newest epoch's trainer has reported that the run is complete.
  bool completed() const { return completed_; }
  // Records that the trainer reports the run as complete. FAILED_PRECONDITION with reason FENCED for a lower epoch,
  // EPOCH_UNKNOWN for one that was not allocated. Returns no record if completion is known already.
  absl::StatusOr<std::optional<LedgerRecord>> Complete(const PolicyVersion& last);

  // FAILED_PRECONDITION with reason FENCED for a lower epoch, EPOCH_UNKNOWN for one that was not allocated,
  // DIGEST_CHANGED if the version is known with other bits, VERSION_ORDER if it is unknown and not above newest().
  // Returns no record if the same publication is known already: repeating it is harmless.
  absl::StatusOr<std::optional<LedgerRecord>> Publish(const PublishedVersion& published);

  // Checks that a member can serve this version. OK for none, for a published version with its digest, and for every
  // version older than all remembered ones. FAILED_PRECONDITION reason WRONG_DIGEST: its bits are not the version's.
  // NOT_FOUND reason UNPUBLISHED_VERSION: unknown; a crash may have lost its record, and the trainer may publish it
  // again.
  absl::Status CheckServed(PolicyVersion served, uint64_t digest) const;

  const PublishedVersion* newest() const { return versions_.empty() ? nullptr : &versions_.back(); }
  const PublishedVersion* Find(PolicyVersion version) const;                  // null if not remembered
  const std::deque<PublishedVersion>& versions() const { return versions_; }  // oldest first

 private:
  absl::Status CheckEpoch(PolicyVersion version) const;
  absl::Status CheckOrder(PolicyVersion version) const;
  void Add(PublishedVersion published);

  std::string run_id_;
  int64_t epoch_ = 0;
  bool completed_ = false;
  std::deque<PublishedVersion> versions_;
};

}  // namespace syncopate::synchronizer
