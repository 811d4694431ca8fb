#include "base/event_log.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/log.h"

namespace syncopate {
namespace {

// An upper bound of each wait; nothing depends on its value.
constexpr absl::Duration kWakeEvery = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<EventLog>> EventLog::Open(FileSystem* files, const std::string& path, Options options) {
  if (options.max_buffer_bytes < 1) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS", "max_buffer_bytes of an event log is below 1");
  }
  SYNCOPATE_RETURN_IF_ERROR(files->CreateDirs(ParentPath(path)));
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<RecordWriter> writer, RecordWriter::Open(files, path));
  return std::unique_ptr<EventLog>(new EventLog(std::move(writer), path, options));
}

EventLog::EventLog(std::unique_ptr<RecordWriter> writer, std::string path, Options options)
    : path_(std::move(path)), options_(options), writer_(std::move(writer)), thread_([this] { Run(); }) {}

EventLog::~EventLog() { Stop().IgnoreError(); }  // an owner that wants the error calls Stop itself

void EventLog::Append(std::string payload) {
  int64_t bytes = static_cast<int64_t>(payload.size()) + kRecordFrameBytes;
  MutexLock lock(&mutex_);
  // Drops the record: a daemon must not wait for the disk to record an event.
  if (stopping_ || buffer_bytes_ + bytes > options_.max_buffer_bytes) {
    ++dropped_;
    return;
  }
  buffer_bytes_ += bytes;
  buffer_.push_back(std::move(payload));
}

int64_t EventLog::dropped() const {
  MutexLock lock(&mutex_);
  return dropped_;
}

absl::Status EventLog::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  {
    MutexLock lock(&join_mutex_);
    if (thread_.joinable()) thread_.join();
  }
  MutexLock lock(&mutex_);
  return first_error_;
}

void EventLog::Run() {
  bool last = false;
  while (!last) {
    std::vector<std::string> records;
    {
      MutexLock lock(&mutex_);
      auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !buffer_.empty(); };
      mutex_.AwaitWithTimeout(Condition(&due), kWakeEvery);
      // The disk is written to without the lock, so Append never waits for it.
      records.swap(buffer_);
      buffer_bytes_ = 0;
      last = stopping_;
    }
    int64_t refused = Write(records);
    MutexLock lock(&mutex_);
    dropped_ += refused;
  }
  // One sync at the end is enough: events are for people who inspect a run, and a lost tail does no harm.
  RecordError(writer_->Sync());
}

int64_t EventLog::Write(const std::vector<std::string>& records) {
  int64_t refused = 0;
  for (const std::string& record : records) {
    absl::Status status = writer_->Append(record);
    if (!status.ok()) ++refused;
    RecordError(status);
  }
  return refused;
}

void EventLog::RecordError(const absl::Status& status) {
  if (status.ok()) return;
  {
    MutexLock lock(&mutex_);
    // Logged only once: on a full disk, repeated messages would fill the log as well.
    if (!first_error_.ok()) return;
    first_error_ = status;
  }
  SYNCOPATE_LOG(kWarning, "events are being lost from %s: %s", path_, std::string(status.message()));
}

std::string EventLogPath(absl::string_view run_dir, absl::string_view name) {
  return absl::StrCat(run_dir, "/events/", name, ".binlog");
}

}  // namespace syncopate
