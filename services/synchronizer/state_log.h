#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/record_log.h"
#include "base/status.h"
#include "synchronizer/versions/version_ledger.h"

namespace syncopate::services {

// The synchronizer's durable state: <dir>/log, a record log of SynchronizerLogRecord. Not thread-safe.
class StateLog {
 public:
  struct Opened {
    std::unique_ptr<StateLog> log;
    std::vector<synchronizer::LedgerRecord> records;  // in the order they were written
  };
  // Makes the folder and the file if they are missing. A log that has grown long is first rewritten as the shortest one
  // with the same meaning. DATA_LOSS reason BAD_LOG or BAD_LEDGER if the state is damaged beyond a torn end.
  static absl::StatusOr<Opened> Open(FileSystem* files, const std::string& dir);

  // Adds a record and makes it durable. Blocks for the disk.
  absl::Status Append(const synchronizer::LedgerRecord& record);

 private:
  explicit StateLog(std::unique_ptr<RecordWriter> writer) : writer_(std::move(writer)) {}
  std::unique_ptr<RecordWriter> writer_;
};

}  // namespace syncopate::services
