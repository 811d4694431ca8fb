#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/file_system.h"
#include "base/mutex.h"
#include "base/status.h"
#include "trainer/data/segmented_log.h"

namespace syncopate::trainer {

// The trainer's log of accepted groups and takes: a SegmentedLog with a thread of its own that writes what is waiting,
// syncs once for all of it ("group commit") and only then says so. What was acknowledged survives any crash. A full or
// failing disk fails the records that it hits and no others; the log stays usable and later records try again.
// Thread-safe. `files` must outlive the log.
class TrajectoryLog {
 public:
  struct Options {
    SegmentedLog::Options segments;
    int64_t max_pending_bytes = 256 << 20;  // payloads handed in and not yet answered

    // INVALID_ARGUMENT (reason BAD_OPTIONS) naming the field that cannot be.
    absl::Status Validate() const;
  };

  struct Stats {
    uint64_t next_sequence = 1;  // of the next record
    int64_t pending_bytes = 0;
    int64_t committed_records = 0;  // since Open, as all below
    int64_t failed_records = 0;
    int64_t commits = 0;  // syncs that covered at least one record
  };

  // OK and the record's number once it is durable; else why it is not in the log (number 0), or CANCELLED.
  using DurableCallback = std::function<void(absl::Status status, uint64_t sequence)>;
  using ReplayCallback = SegmentedLog::ReplayCallback;

  // Replays the log to `replay` on the calling thread, then starts the log thread. Errors as SegmentedLog::Open.
  static absl::StatusOr<std::unique_ptr<TrajectoryLog>> Open(FileSystem* files, const Options& options,
                                                             const ReplayCallback& replay);
  // Stops.
  ~TrajectoryLog();

  const SegmentedLog::ReplayReport& replayed() const { return replayed_; }

  // Hands in a record; never waits for the disk. If this returns OK, `durable` is called exactly once, from the log
  // thread, in the order of the Appends, with no lock held; it must not call Stop or AppendAndWait, nor block. If it
  // returns an error, `durable` is never called: RESOURCE_EXHAUSTED (reason LOG_FULL) over max_pending_bytes,
  // CANCELLED (reason LOG_STOPPED) after Stop.
  absl::Status Append(std::string payload, DurableCallback durable);

  // Append, and waits for the answer. DEADLINE_EXCEEDED (reason LOG_SLOW) if there is none within `timeout`: the
  // record may become durable later.
  absl::StatusOr<uint64_t> AppendAndWait(std::string payload, absl::Duration timeout);

  // Has the log thread delete the files all of whose records are numbered below `sequence`, before it writes any
  // record handed in later. A failure is logged and tried again at the next call.
  void PruneBefore(uint64_t sequence);

  Stats stats() const;

  // Answers all that was handed in, then ends the thread. Idempotent; a second caller waits as well.
  void Stop();

 private:
  struct Pending {
    std::string payload;
    DurableCallback durable;
    absl::Status status;
    uint64_t sequence = 0;
  };

  TrajectoryLog(std::unique_ptr<SegmentedLog> log, const Options& options);
  void Run();
  // The following run on the log thread.
  void WriteBatch(std::vector<Pending>* batch);
  void Account(const std::vector<Pending>& batch);
  void Prune(uint64_t sequence);

  const int64_t max_pending_bytes_;
  const SegmentedLog::ReplayReport replayed_;
  const std::unique_ptr<SegmentedLog> log_;  // used by the log thread only

  mutable Mutex mutex_;
  std::vector<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  uint64_t prune_before_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: nothing to prune
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Stats stats_ ABSL_GUARDED_BY(mutex_);

  Mutex join_mutex_;  // makes concurrent Stops join once
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace syncopate::trainer
