#include "base/record_log.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/crc32c.h"

namespace syncopate {
namespace {

static_assert(std::endian::native == std::endian::little, "integers are copied as they are");

constexpr char kMagic[] = "SYNCOLOG";
constexpr size_t kMagicBytes = 8;
constexpr uint32_t kVersion = 1;
constexpr int64_t kReadChunkBytes = 256 << 10;

void PutU32(uint32_t value, std::string* out) {
  char bytes[4];
  std::memcpy(bytes, &value, 4);
  out->append(bytes, 4);
}

uint32_t GetU32(absl::string_view bytes) {
  uint32_t value;
  std::memcpy(&value, bytes.data(), 4);
  return value;
}

std::string MakeHeader() {
  std::string header(kMagic, kMagicBytes);
  PutU32(kVersion, &header);
  PutU32(Crc32c(header), &header);
  return header;
}

}  // namespace

RecordReader::RecordReader(std::unique_ptr<ReadableFile> file, int64_t max_record_bytes)
    : file_(std::move(file)), max_record_bytes_(max_record_bytes) {}

absl::StatusOr<RecordReader> RecordReader::Open(FileSystem* files, const std::string& path, int64_t max_record_bytes) {
  SYNCOPATE_ASSIGN_OR_RETURN(int64_t file_bytes, files->FileBytes(path));
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, files->OpenForRead(path));
  RecordReader reader(std::move(file), max_record_bytes);
  SYNCOPATE_RETURN_IF_ERROR(reader.ReadHeader(path, file_bytes));
  return reader;
}

absl::Status RecordReader::ReadHeader(const std::string& path, int64_t file_bytes) {
  SYNCOPATE_ASSIGN_OR_RETURN(bool whole, Fill(kRecordLogHeaderBytes));
  absl::string_view header = absl::string_view(buffer_).substr(0, kRecordLogHeaderBytes);
  bool good = whole && header.substr(0, kMagicBytes) == kMagic &&
              GetU32(header.substr(kMagicBytes + 4)) == Crc32c(header.substr(0, kMagicBytes + 4));
  // A short file with a bad header comes from a crash between its creation and its first sync: it had no records yet. A
  // longer file with a bad header is damaged, and a person must decide.
  if (!good && file_bytes <= kRecordLogHeaderBytes) {
    EndWith(file_bytes == 0 ? "" : "the header is cut short");
    return absl::OkStatus();
  }
  if (!good) {
    return Error(absl::StatusCode::kDataLoss, "BAD_LOG",
                 absl::StrFormat("%s is not a record log, or its header is damaged; restore it from a copy, or move it "
                                 "away to go on without it",
                                 path),
                 {{"path", path}});
  }
  uint32_t version = GetU32(header.substr(kMagicBytes));
  if (version != kVersion) {
    return Error(absl::StatusCode::kFailedPrecondition, "LOG_VERSION",
                 absl::StrFormat("%s has format %d and this program reads %d; use the release that wrote it", path,
                                 version, kVersion),
                 {{"path", path}});
  }
  consumed_ = kRecordLogHeaderBytes;
  valid_bytes_ = kRecordLogHeaderBytes;
  return absl::OkStatus();
}

absl::StatusOr<bool> RecordReader::Fill(int64_t bytes) {
  size_t wanted = static_cast<size_t>(bytes);
  if (buffer_.size() - consumed_ >= wanted) return true;
  buffer_.erase(0, consumed_);
  consumed_ = 0;
  // Reads in chunks, so that a wrong length needs no more memory than the file is long.
  while (buffer_.size() < wanted) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::string chunk, file_->Read(kReadChunkBytes));
    if (chunk.empty()) return false;
    buffer_ += chunk;
  }
  return true;
}

std::optional<std::string> RecordReader::EndWith(absl::string_view what) {
  ended_ = true;
  if (!what.empty()) damage_ = absl::StrFormat("frame at byte %d: %s", valid_bytes_, what);
  buffer_.clear();
  consumed_ = 0;
  return std::nullopt;
}

absl::StatusOr<std::optional<std::string>> RecordReader::Next() {
  if (ended_) return std::nullopt;
  SYNCOPATE_ASSIGN_OR_RETURN(bool has_head, Fill(kRecordFrameBytes));
  if (!has_head) return EndWith(buffer_.empty() ? "" : "it is cut short");
  absl::string_view head = absl::string_view(buffer_).substr(consumed_, kRecordFrameBytes);
  int64_t length = GetU32(head);
  uint32_t expected = GetU32(head.substr(4));
  // The checksum covers the length too, so that a frame of zeros is no record.
  uint32_t length_crc = Crc32c(head.substr(0, 4));
  // A damaged length must not become an allocation.
  if (length > max_record_bytes_) {
    return EndWith(absl::StrFormat("its length %d is over the limit of %d", length, max_record_bytes_));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(bool whole, Fill(kRecordFrameBytes + length));
  if (!whole) return EndWith("it is cut short");
  std::string payload = buffer_.substr(consumed_ + kRecordFrameBytes, static_cast<size_t>(length));
  if (Crc32c(payload, length_crc) != expected) return EndWith("its checksum is wrong");
  consumed_ += static_cast<size_t>(kRecordFrameBytes + length);
  valid_bytes_ += kRecordFrameBytes + length;
  return payload;
}

absl::StatusOr<std::unique_ptr<RecordWriter>> RecordWriter::Create(FileSystem* files, const std::string& path,
                                                                   int64_t max_record_bytes) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file,
                             files->OpenForAppend(path, FileSystem::OpenMode::kCreateNew));
  std::unique_ptr<RecordWriter> writer(new RecordWriter(std::move(file), max_record_bytes));
  SYNCOPATE_RETURN_IF_ERROR(writer->WriteHeader(files, path));
  return writer;
}

absl::StatusOr<std::unique_ptr<RecordWriter>> RecordWriter::Open(FileSystem* files, const std::string& path,
                                                                 int64_t max_record_bytes) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file,
                             files->OpenForAppend(path, FileSystem::OpenMode::kOpenOrCreate));
  std::unique_ptr<RecordWriter> writer(new RecordWriter(std::move(file), max_record_bytes));
  SYNCOPATE_ASSIGN_OR_RETURN(RecordReader reader, RecordReader::Open(files, path, max_record_bytes));
  while (true) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::optional<std::string> record, reader.Next());
    if (!record.has_value()) break;
  }
  // Bytes after the last whole record were never acknowledged. They are cut off, because no reader gets past them to
  // new records.
  writer->damage_ = reader.damage();
  SYNCOPATE_RETURN_IF_ERROR(writer->CutTo(reader.valid_bytes()));
  if (writer->size_ == 0) {
    SYNCOPATE_RETURN_IF_ERROR(writer->WriteHeader(files, path));
  } else {
    // The records just read may be in the page cache only, left there by a process that died before its sync.
    SYNCOPATE_RETURN_IF_ERROR(writer->file_->Sync());
    writer->synced_size_ = writer->size_;
  }
  return writer;
}

absl::Status RecordWriter::CutTo(int64_t bytes) {
  cut_bytes_ = file_->size() - bytes;
  size_ = bytes;
  return cut_bytes_ == 0 ? absl::OkStatus() : file_->Truncate(bytes);
}

absl::Status RecordWriter::WriteHeader(FileSystem* files, const std::string& path) {
  absl::Status status = file_->Append(MakeHeader());
  if (status.ok()) status = file_->Sync();
  if (!status.ok()) {
    // After a failed sync a reader may see a header that is not on the disk.
    file_->Truncate(0).IgnoreError();  // the first error is the one that matters
    return status;
  }
  SYNCOPATE_RETURN_IF_ERROR(files->SyncDir(ParentPath(path)));
  size_ = synced_size_ = kRecordLogHeaderBytes;
  return absl::OkStatus();
}

absl::Status RecordWriter::Repair() {
  if (!torn_) return absl::OkStatus();
  SYNCOPATE_RETURN_IF_ERROR(file_->Truncate(size_));
  torn_ = false;
  return absl::OkStatus();
}

absl::Status RecordWriter::Append(absl::string_view payload) {
  if (static_cast<int64_t>(payload.size()) > max_record_bytes_) {
    return Error(absl::StatusCode::kInvalidArgument, "RECORD_TOO_LARGE",
                 absl::StrFormat("a record of %d bytes is over the limit of %d", payload.size(), max_record_bytes_));
  }
  SYNCOPATE_RETURN_IF_ERROR(Repair());
  frame_.clear();
  PutU32(static_cast<uint32_t>(payload.size()), &frame_);
  PutU32(Crc32c(payload, Crc32c(frame_)), &frame_);
  frame_.append(payload.data(), payload.size());
  absl::Status status = file_->Append(frame_);
  if (!status.ok()) {
    torn_ = true;
    Repair().IgnoreError();  // the next call repeats it and says so if it fails again
    return status;
  }
  size_ += static_cast<int64_t>(frame_.size());
  return absl::OkStatus();
}

absl::Status RecordWriter::Sync() {
  SYNCOPATE_RETURN_IF_ERROR(Repair());
  absl::Status status = file_->Sync();
  if (!status.ok()) {
    // After a failed fsync the kernel may have discarded the pages and marked them clean: a later fsync that succeeds
    // proves nothing. So all records since the last good fsync are removed; a caller that still has them appends them
    // again.
    size_ = synced_size_;
    torn_ = true;
    Repair().IgnoreError();  // the next call repeats it and says so if it fails again
    return status;
  }
  synced_size_ = size_;
  return absl::OkStatus();
}

}  // namespace syncopate
