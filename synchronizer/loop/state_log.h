#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/file_system.h"
#include "base/record_log.h"
#include "base/status.h"
#include "synchronizer/loop/sync_tally.h"
#include "synchronizer/versions/version_ledger.h"

namespace syncopate::synchronizer {

// How logged records are encoded. Passed in, because this folder knows no wire format. Decoding trusts no byte:
// DATA_LOSS (reason BAD_LEDGER), or INVALID_ARGUMENT (reason BAD_MESSAGE) for a record that this build does not know.
struct StateCodec {
  std::string (*encode_record)(const LedgerRecord& record) = nullptr;
  std::string (*encode_syncs)(const SyncTally& syncs) = nullptr;
  absl::StatusOr<std::variant<LedgerRecord, SyncTally>> (*decode)(const std::string& bytes) = nullptr;
};

// The synchronizer's durable state: <dir>/log, a record log of all changes. Not thread-safe.
class StateLog {
 public:
  struct Opened {
    std::unique_ptr<StateLog> log;
    std::vector<LedgerRecord> records;  // in the order they were written
    SyncTally syncs;                    // the sum of all that were appended
  };
  // Creates the folder and the file if they are missing. A long log is first rewritten as the shortest one with the
  // same meaning. DATA_LOSS reason BAD_LOG or BAD_LEDGER if the state is damaged beyond a torn end.
  static absl::StatusOr<Opened> Open(FileSystem* files, const std::string& dir, const StateCodec& codec);

  // Adds a record and makes it durable. Blocks for the disk. After an error the log is unchanged, and the same record
  // may be appended again: the rest of a torn write is cut off first.
  absl::Status Append(const LedgerRecord& record);

  // Adds ended syncs to those that were added before. They become durable with the next record, but survive any end of
  // this process at once. An error changes nothing.
  absl::Status AppendSyncs(const SyncTally& ended);

  // True when enough records have been added since the last rewrite: call Compact.
  bool HasGrown() const { return appended_ >= kCompactEvery; }
  // Rewrites the log as `snapshot` and `syncs`, which must have the same meaning as all appended records. Blocks for
  // the disk. If the new log cannot be written, or the disk has no room to put it in place, the old log stays; that is
  // logged, is no error, and is tried again kCompactEvery records later. An error: nothing can be appended any more.
  absl::Status Compact(const std::vector<LedgerRecord>& snapshot, const SyncTally& syncs);

 private:
  absl::Status Add(const std::string& record);    // does not make it durable
  absl::Status OpenAgain();                       // opens the file that is there after a rewrite
  static constexpr int64_t kCompactEvery = 1000;  // records; a rewritten log has about 100

  StateLog(FileSystem* files, std::string path, const StateCodec& codec, std::unique_ptr<RecordWriter> writer)
      : files_(files), path_(std::move(path)), codec_(codec), writer_(std::move(writer)) {}

  FileSystem* const files_;
  const std::string path_;
  const StateCodec codec_;
  std::unique_ptr<RecordWriter> writer_;  // null after an unfinished rewrite
  SyncTally unsynced_;                    // syncs of AppendSyncs since the last record
  bool taken_back_ = false;               // a failed disk sync removed unsynced_ from the log again
  int64_t appended_ = 0;                  // since the log was opened or rewritten
};

}  // namespace syncopate::synchronizer
