#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/file_system.h"
#include "base/status.h"

// An append-only file of opaque records. All integers little-endian:
//
//   file    +--------------------------+---------+---------+-- ... --+
//           | header                   | frame   | frame   |         |
//           +--------------------------+---------+---------+-- ... --+
//   header  | "SYNCOLOG" | version u32 | crc32c u32 of the 12 bytes before |                          16 bytes
//   frame   | length u32 | crc32c u32 of length and payload | payload: `length` bytes |              8 + length bytes
//
// The header is synced before the first frame is written. A frame that is cut short, too long or fails its checksum
// ends the log: nothing after it is ever read. A crash can leave such a tail; opening for appending cuts it off.
namespace syncopate {

constexpr int64_t kRecordLogHeaderBytes = 16;
constexpr int64_t kRecordFrameBytes = 8;
constexpr int64_t kDefaultMaxRecordBytes = 64 << 20;

// Reads a log from its beginning, one record in memory at a time. Not thread-safe.
class RecordReader {
 public:
  // DATA_LOSS (reason BAD_LOG) if the file is no record log, FAILED_PRECONDITION (LOG_VERSION) if it was written by a
  // newer format. A file no longer than a header with a bad header is a creation that a crash cut short: an empty
  // log with damage(). `files` must outlive the reader.
  static absl::StatusOr<RecordReader> Open(FileSystem* files, const std::string& path,
                                           int64_t max_record_bytes = kDefaultMaxRecordBytes);

  // The next record; nullopt at the end or at the first bad frame, and from then on. Errors: those of the disk.
  absl::StatusOr<std::optional<std::string>> Next();

  // Bytes of the header and the good frames read so far.
  int64_t valid_bytes() const { return valid_bytes_; }
  // Why the log ended before the file did, e.g. "frame at byte 64: checksum is wrong"; empty if it did not.
  const std::string& damage() const { return damage_; }

 private:
  RecordReader(std::unique_ptr<ReadableFile> file, int64_t max_record_bytes);
  // Reads until `bytes` bytes are buffered; false if the file ends before.
  absl::StatusOr<bool> Fill(int64_t bytes);
  absl::Status ReadHeader(const std::string& path, int64_t file_bytes);
  std::optional<std::string> EndWith(absl::string_view what);

  std::unique_ptr<ReadableFile> file_;
  int64_t max_record_bytes_;
  std::string buffer_;
  size_t consumed_ = 0;  // of buffer_
  int64_t valid_bytes_ = 0;
  bool ended_ = false;
  std::string damage_;
};

// Appends to a log. A failed call leaves the log as if it had not been made, also on the disk: what it wrote is cut
// off at once, or, if that fails too, before the next append. So a full disk costs the records that did not fit and
// nothing else. Not thread-safe. The destructor does not sync.
class RecordWriter {
 public:
  // Opens a log, or makes one, durably. A bad tail is cut off; when this returns, all records that RecordReader finds
  // are on the disk. Errors as RecordReader::Open. `files` must outlive the call only.
  static absl::StatusOr<std::unique_ptr<RecordWriter>> Open(FileSystem* files, const std::string& path,
                                                            int64_t max_record_bytes = kDefaultMaxRecordBytes);
  // Makes a log durably; the file must not exist yet (else ALREADY_EXISTS).
  static absl::StatusOr<std::unique_ptr<RecordWriter>> Create(FileSystem* files, const std::string& path,
                                                              int64_t max_record_bytes = kDefaultMaxRecordBytes);

  // Adds one record; durable after the next good Sync. INVALID_ARGUMENT (reason RECORD_TOO_LARGE) over the limit.
  absl::Status Append(absl::string_view payload);
  // Makes all records durable. If it fails, all records since the last good Sync are removed from the log.
  absl::Status Sync();

  int64_t size() const { return size_; }                 // bytes of the header and all good frames
  int64_t synced_size() const { return synced_size_; }   // durable bytes of size()
  int64_t cut_bytes() const { return cut_bytes_; }       // bytes that Open cut off
  const std::string& damage() const { return damage_; }  // why Open cut them off; as RecordReader::damage()

 private:
  RecordWriter(std::unique_ptr<AppendFile> file, int64_t max_record_bytes)
      : file_(std::move(file)), max_record_bytes_(max_record_bytes) {}
  absl::Status WriteHeader(FileSystem* files, const std::string& path);
  absl::Status CutTo(int64_t bytes);
  absl::Status Repair();

  std::unique_ptr<AppendFile> file_;
  int64_t max_record_bytes_;
  int64_t size_ = 0;
  int64_t synced_size_ = 0;
  int64_t cut_bytes_ = 0;
  bool torn_ = false;  // the file may contain bytes beyond size_
  std::string damage_;
  std::string frame_;  // reused
};

}  // namespace syncopate
