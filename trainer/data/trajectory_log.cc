#include "trainer/data/trajectory_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"

namespace syncopate::trainer {
namespace {

// Nothing depends on it: every change wakes the thread.
constexpr absl::Duration kWakeEvery = absl::Seconds(1);

int64_t CountBytes(const std::string& payload) { return static_cast<int64_t>(payload.size()); }

// Where AppendAndWait and the callback meet; the callback may come after the waiter has given up.
struct Answer {
  Mutex mutex;
  bool given ABSL_GUARDED_BY(mutex) = false;
  absl::Status status ABSL_GUARDED_BY(mutex);
  uint64_t sequence ABSL_GUARDED_BY(mutex) = 0;
};

}  // namespace

absl::Status TrajectoryLog::Options::Validate() const {
  if (max_pending_bytes < 1) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS", "log: max_pending_bytes is below 1");
  }
  return segments.Validate();
}

absl::StatusOr<std::unique_ptr<TrajectoryLog>> TrajectoryLog::Open(FileSystem* files, const Options& options,
                                                                   const ReplayCallback& replay) {
  SYNCOPATE_RETURN_IF_ERROR(options.Validate());
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<SegmentedLog> log, SegmentedLog::Open(files, options.segments, replay));
  return std::unique_ptr<TrajectoryLog>(new TrajectoryLog(std::move(log), options));
}

TrajectoryLog::TrajectoryLog(std::unique_ptr<SegmentedLog> log, const Options& options)
    : max_pending_bytes_(options.max_pending_bytes), replayed_(log->replayed()), log_(std::move(log)) {
  {
    MutexLock lock(&mutex_);
    stats_.next_sequence = log_->next_sequence();
  }
  MutexLock lock(&join_mutex_);
  thread_ = std::thread([this] { Run(); });
}

TrajectoryLog::~TrajectoryLog() { Stop(); }

// Many records share one fsync: whatever arrives while the disk works is the next batch. So the disk's
// latency is paid once for many, and nothing waits longer than two commits.
absl::Status TrajectoryLog::Append(std::string payload, DurableCallback durable) {
  MutexLock lock(&mutex_);
  if (stopping_) return Error(absl::StatusCode::kCancelled, "LOG_STOPPED", "the trajectory log has been stopped");
  // A slow disk must not become a full memory: rollouters are told to come again.
  if (stats_.pending_bytes + CountBytes(payload) > max_pending_bytes_) {
    return Error(
        absl::StatusCode::kResourceExhausted, "LOG_FULL",
        absl::StrFormat("%d bytes already wait for the trajectory log's disk; try again later", stats_.pending_bytes));
  }
  stats_.pending_bytes += CountBytes(payload);
  pending_.push_back({std::move(payload), std::move(durable), absl::OkStatus(), 0});
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> TrajectoryLog::AppendAndWait(std::string payload, absl::Duration timeout) {
  // Shared: the callback may come after this call has given up.
  auto answer = std::make_shared<Answer>();
  SYNCOPATE_RETURN_IF_ERROR(Append(std::move(payload), [answer](absl::Status status, uint64_t sequence) {
    MutexLock lock(&answer->mutex);
    answer->given = true;
    answer->status = std::move(status);
    answer->sequence = sequence;
  }));
  MutexLock lock(&answer->mutex);
  if (!answer->mutex.AwaitWithTimeout(Condition(&answer->given), timeout)) {
    return Error(absl::StatusCode::kDeadlineExceeded, "LOG_SLOW",
                 absl::StrCat("the trajectory log's disk took longer than ", absl::FormatDuration(timeout)));
  }
  if (!answer->status.ok()) return answer->status;
  return answer->sequence;
}

void TrajectoryLog::PruneBefore(uint64_t sequence) {
  MutexLock lock(&mutex_);
  prune_before_ = std::max(prune_before_, sequence);
}

TrajectoryLog::Stats TrajectoryLog::stats() const {
  MutexLock lock(&mutex_);
  return stats_;
}

void TrajectoryLog::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  MutexLock lock(&join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void TrajectoryLog::Run() {
  bool last = false;
  while (!last) {
    std::vector<Pending> batch;
    uint64_t prune_before = 0;
    {
      MutexLock lock(&mutex_);
      auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !pending_.empty() || prune_before_ != 0;
      };
      mutex_.AwaitWithTimeout(Condition(&due), kWakeEvery);
      // The disk works without the lock, so that appending never waits for it.
      batch.swap(pending_);
      std::swap(prune_before, prune_before_);
      // Read together with the batch: what was appended before Stop() is still written.
      last = stopping_;
    }
    if (prune_before != 0) Prune(prune_before);
    WriteBatch(&batch);
    Account(batch);
    // Called after Account(), so that the callee finds the record in the figures; without a lock, as it may append
    // again.
    for (Pending& record : batch) record.durable(std::move(record.status), record.sequence);
  }
}

void TrajectoryLog::WriteBatch(std::vector<Pending>* batch) {
  for (Pending& record : *batch) {
    absl::StatusOr<uint64_t> sequence = log_->Append(record.payload);
    record.status = sequence.status();
    if (sequence.ok()) record.sequence = *sequence;
  }
  absl::Status committed = log_->Commit();
  if (committed.ok()) return;
  for (Pending& record : *batch) {
    // None of the batch is durable, whichever of them the disk has.
    if (record.status.ok()) record.status = committed;
    record.sequence = 0;
  }
}

void TrajectoryLog::Account(const std::vector<Pending>& batch) {
  int64_t committed = 0;
  int64_t bytes = 0;
  absl::Status first_error;
  for (const Pending& record : batch) {
    bytes += CountBytes(record.payload);
    if (record.status.ok()) ++committed;
    if (first_error.ok()) first_error = record.status;
  }
  int64_t failed = static_cast<int64_t>(batch.size()) - committed;
  if (failed > 0) {
    SYNCOPATE_LOG(kError, "%d records are not in the trajectory log: %s", failed, std::string(first_error.message()));
  }
  MutexLock lock(&mutex_);
  stats_.pending_bytes -= bytes;
  stats_.next_sequence = log_->next_sequence();
  stats_.committed_records += committed;
  stats_.failed_records += failed;
  if (committed > 0) ++stats_.commits;
}

void TrajectoryLog::Prune(uint64_t sequence) {
  absl::Status status = log_->PruneBefore(sequence);
  if (status.ok()) return;
  SYNCOPATE_LOG(kWarning, "the trajectory log was not pruned: %s", std::string(status.message()));
}

}  // namespace syncopate::trainer
