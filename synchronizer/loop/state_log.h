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

// How what is logged is written: handed in, for this folder knows no wire format. Decoding trusts nothing: DATA_LOSS
// (reason BAD_LEDGER), or INVALID_ARGUMENT (reason BAD_MESSAGE) for a record that this build does not know.
struct StateCodec {
  std::string (*encode_record)(const LedgerRecord& record) = nullptr;
  std::string (*encode_syncs)(const SyncTally& syncs) = nullptr;
  absl::StatusOr<std::variant<LedgerRecord, SyncTally>> (*decode)(const std::string& bytes) = nullptr;
};

// The synchronizer's durable state: <dir>/log, a record log of what happened. Not thread-safe.
class StateLog {
 public:
  struct Opened {
    std::unique_ptr<StateLog> log;
    std::vector<LedgerRecord> records;  // in the order they were written
    SyncTally syncs;                    // all that were appended
  };
  // Makes the folder and the file if they are missing. A log that has grown long is first rewritten as the shortest one
  // with the same meaning. DATA_LOSS reason BAD_LOG or BAD_LEDGER if the state is damaged beyond a torn end.
  static absl::StatusOr<Opened> Open(FileSystem* files, const std::string& dir, const StateCodec& codec);

  // Adds a record and makes it durable. Blocks for the disk. After an error the log is as it was, and the same record may
  // be appended again: what a torn write has left is cut off before.
  absl::Status Append(const LedgerRecord& record);

  // Adds syncs that have ended to those that were added before. Durable with the next record, but known after the end
  // of this process, whatever ends it. An error changes nothing.
  absl::Status AppendSyncs(const SyncTally& ended);

  // True when so many records have been added that it is time for Compact.
  bool HasGrown() const { return appended_ >= kCompactEvery; }
  // Rewrites the log as `snapshot` and `syncs`, which must mean the same as all that was appended. Blocks for the disk.
  // If the new log cannot be written, or the disk has no room to put it in its place, the old one stays, which is logged
  // and no error, and this is tried again as many records later. An error: nothing can be appended any more.
  absl::Status Compact(const std::vector<LedgerRecord>& snapshot, const SyncTally& syncs);

 private:
  absl::Status Add(const std::string& record);    // without making it durable
  absl::Status OpenAgain();                       // what lies there after a rewrite
  static constexpr int64_t kCompactEvery = 1000;  // records; a rewritten log has about a hundred

  StateLog(FileSystem* files, std::string path, const StateCodec& codec, std::unique_ptr<RecordWriter> writer)
      : files_(files), path_(std::move(path)), codec_(codec), writer_(std::move(writer)) {}

  FileSystem* const files_;
  const std::string path_;
  const StateCodec codec_;
  std::unique_ptr<RecordWriter> writer_;  // null after a rewrite that has not ended
  SyncTally unsynced_;                    // of AppendSyncs, since the last record
  bool taken_back_ = false;               // a failed sync of the disk took them out of the log again
  int64_t appended_ = 0;                  // since the log was opened or rewritten
};

}  // namespace syncopate::synchronizer
