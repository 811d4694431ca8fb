#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/file_system.h"
#include "base/record_log.h"
#include "base/status.h"

namespace syncopate::trainer {

// A log of opaque records, numbered from 1 without gaps, in files ("segments") of one folder, so that its old part can
// be deleted. The folder:
//
//   g<generation, 6 digits>-<sequence of the first record, 20 digits>.log        a record log (base/record_log.h)
//
// A file's name fixes where the one before it ends: records there that are numbered at or beyond it do not exist, and
// records that are missing there are damage, never taken for a torn tail. Only the last file may end in a torn tail; a
// crash leaves one, and Open cuts it off. Each Open begins a new generation, with a new file, so that a process that
// wakes up late and goes on appending to its own generation changes nothing.
//
// No thread, no lock: one caller at a time. Every call may block for the disk.
class SegmentedLog {
 public:
  struct Options {
    std::string folder;
    int64_t segment_bytes = 64 << 20;     // a new file begins once one is this long
    int64_t max_record_bytes = 64 << 20;  // of one payload

    // INVALID_ARGUMENT (reason BAD_OPTIONS) naming the field that cannot be.
    absl::Status Validate() const;
  };

  // Gets each record of the log, in order. An error ends Open with it.
  using ReplayCallback = std::function<absl::Status(uint64_t sequence, absl::string_view payload)>;

  struct ReplayReport {
    int64_t records = 0;
    int64_t cut_bytes = 0;        // of a torn tail
    int64_t ignored_records = 0;  // beyond their file's end, e.g. by a process that had lost the log; not replayed
    std::string damage;           // why the tail was cut; empty if it was not
  };

  // Opens the folder, making it if need be, replays what is there and begins a new generation. All that was replayed
  // is durable when this returns. Errors: the disk's; those of `replay`; DATA_LOSS (reason LOG_DAMAGED) naming the
  // file if records are missing or damaged anywhere but at the end; FAILED_PRECONDITION (reason LOG_IN_USE) if
  // another process opens the folder at this moment. `files` must outlive the log.
  static absl::StatusOr<std::unique_ptr<SegmentedLog>> Open(FileSystem* files, const Options& options,
                                                            const ReplayCallback& replay);

  const ReplayReport& replayed() const { return replayed_; }

  // Adds one record and returns its number; durable after the next good Commit. A failed call leaves no trace.
  absl::StatusOr<uint64_t> Append(absl::string_view payload);

  // Makes all records durable. If it fails, all since the last good Commit are taken back and their numbers given
  // again. (Should the process die before the next Append, it may still find them when it replays.)
  absl::Status Commit();

  // Deletes the files all of whose records are numbered below `sequence`; never the one being written.
  absl::Status PruneBefore(uint64_t sequence);

  uint64_t next_sequence() const { return next_sequence_; }
  size_t segments() const { return segments_.size(); }

 private:
  struct Segment {
    int64_t generation = 0;
    uint64_t first = 1;  // number of its first record
    std::string name;
  };

  SegmentedLog(FileSystem* files, Options options) : files_(files), options_(std::move(options)) {}
  static std::optional<Segment> ParseName(const std::string& name);
  static Segment NameSegment(int64_t generation, uint64_t first);
  std::string GetPath(const Segment& segment) const { return JoinPath(options_.folder, segment.name); }

  absl::Status FindSegments();
  absl::Status ReplayAll(const ReplayCallback& replay);
  // Replays the records of a segment numbered below `limit`; returns why it ended early, or "".
  absl::StatusOr<std::string> ReplaySegment(const Segment& segment, uint64_t limit, const ReplayCallback& replay);
  absl::Status SealTail();
  absl::Status BeginGeneration();
  absl::Status BeginSegment();

  FileSystem* const files_;
  const Options options_;
  ReplayReport replayed_;
  std::vector<Segment> segments_;  // in order; the last one is being written
  std::vector<Segment> fenced_;    // wholly beyond their generation's end
  std::unique_ptr<RecordWriter> writer_;
  uint64_t next_sequence_ = 1;
  uint64_t committed_sequence_ = 1;  // the number after the last durable record
};

}  // namespace syncopate::trainer
