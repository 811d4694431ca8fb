#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "base/file_system.h"
#include "base/mutex.h"
#include "base/record_log.h"
#include "base/status.h"

namespace syncopate {

// Writes opaque event records to a record log (base/record_log.h) from its own thread. Nothing is recovered from this
// log: it is synced only by Stop, and when its buffer is full, it drops and counts records instead of waiting.
// Thread-safe.
class EventLog {
 public:
  struct Options {
    int64_t max_buffer_bytes = 8 << 20;  // records that wait for the disk; at least 1
  };

  // Opens `path` for appending (cutting off a torn tail) and starts the writer thread. Blocks for the disk.
  // `files` must outlive the log.
  static absl::StatusOr<std::unique_ptr<EventLog>> Open(FileSystem* files, const std::string& path, Options options);
  static absl::StatusOr<std::unique_ptr<EventLog>> Open(FileSystem* files, const std::string& path) {
    return Open(files, path, Options());
  }
  // Calls Stop().
  ~EventLog();

  // Adds one record. Never waits for the disk. The record is dropped and counted if the buffer is full, after Stop, or
  // if the disk refuses it.
  void Append(std::string payload);

  int64_t dropped() const;

  // Writes and syncs the buffered records and ends the thread. Idempotent. Returns the first error of the disk since
  // Open.
  absl::Status Stop();

 private:
  EventLog(std::unique_ptr<RecordWriter> writer, std::string path, Options options);
  void Run();
  // Runs on the writer thread; returns how many of `records` the disk refused.
  int64_t Write(const std::vector<std::string>& records);
  void RecordError(const absl::Status& status);

  const std::string path_;
  const Options options_;
  const std::unique_ptr<RecordWriter> writer_;  // used by the writer thread only

  mutable Mutex mutex_;
  std::vector<std::string> buffer_ ABSL_GUARDED_BY(mutex_);
  int64_t buffer_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);

  Mutex join_mutex_;  // makes concurrent Stops join once
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

// The path of a process's event log: <run dir>/events/<name>.binlog; the name is like "rollouter-1".
std::string EventLogPath(absl::string_view run_dir, absl::string_view name);

}  // namespace syncopate
