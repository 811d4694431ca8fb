// Opens a record log that a crash or an untrusted peer has left: the log gives the good frames from its beginning and
// none after the first bad one. A log opened for appending keeps these frames and accepts more.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/record_log.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using namespace syncopate;  // NOLINT: a program of its own

constexpr int64_t kMaxRecord = 4096;

// One file, in memory.
class OneFile final : public FileSystem {
 public:
  explicit OneFile(std::string bytes) : bytes_(std::move(bytes)) {}
  const std::string& bytes() const { return bytes_; }

  absl::Status CreateDirs(const std::string&) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<std::string>> List(const std::string&) override { return std::vector<std::string>{"log"}; }
  absl::StatusOr<int64_t> FileBytes(const std::string&) override { return static_cast<int64_t>(bytes_.size()); }
  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string&) override {
    return std::make_unique<Reader>(bytes_);
  }
  absl::StatusOr<std::unique_ptr<AppendFile>> OpenForAppend(const std::string&, OpenMode) override {
    return std::make_unique<Appender>(&bytes_);
  }
  absl::Status Rename(const std::string&, const std::string&) override { return absl::OkStatus(); }
  absl::Status RemoveTree(const std::string&) override { return absl::OkStatus(); }
  absl::Status SyncDir(const std::string&) override { return absl::OkStatus(); }

 private:
  struct Reader final : ReadableFile {
    explicit Reader(const std::string& all) : bytes(all) {}
    absl::StatusOr<std::string> Read(int64_t max_bytes) override {
      const std::string next = bytes.substr(at, static_cast<size_t>(max_bytes));
      at += next.size();
      return next;
    }
    const std::string bytes;
    size_t at = 0;
  };
  struct Appender final : AppendFile {
    explicit Appender(std::string* all) : bytes(all) {}
    absl::Status Append(absl::string_view data) override {
      bytes->append(data.data(), data.size());
      return absl::OkStatus();
    }
    absl::Status Sync() override { return absl::OkStatus(); }
    absl::Status Truncate(int64_t to) override {
      bytes->resize(static_cast<size_t>(to));
      return absl::OkStatus();
    }
    int64_t size() const override { return static_cast<int64_t>(bytes->size()); }
    std::string* const bytes;
  };
  std::string bytes_;
};

uint32_t Number(const std::string& bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return value;
}

// The good frames, decoded by the drawing in record_log.h alone.
std::vector<std::string> GoodFrames(const std::string& log) {
  std::vector<std::string> frames;
  size_t at = kRecordLogHeaderBytes;
  while (at + kRecordFrameBytes <= log.size()) {
    const size_t length = Number(log, at);
    if (length > kMaxRecord || at + kRecordFrameBytes + length > log.size()) break;
    const std::string covered = log.substr(at, 4) + log.substr(at + kRecordFrameBytes, length);
    if (Crc32c(covered) != Number(log, at + 4)) break;
    frames.push_back(covered.substr(4));
    at += kRecordFrameBytes + length;
  }
  return frames;
}

// Returns every record that the log reads.
std::vector<std::string> ReadAll(OneFile* file, bool* is_log) {
  auto reader = RecordReader::Open(file, "log", kMaxRecord);
  *is_log = reader.ok();
  std::vector<std::string> records;
  while (reader.ok()) {
    auto record = reader->Next();
    if (!record.ok()) std::abort();
    if (!record->has_value()) break;
    records.push_back(**record);
  }
  return records;
}

void Append(std::string* log, const std::string& payload) {
  std::string length;
  for (size_t i = 0; i < 4; ++i) length += static_cast<char>(payload.size() >> (8 * i));
  const uint32_t checksum = Crc32c(length + payload);
  *log += length;
  for (size_t i = 0; i < 4; ++i) *log += static_cast<char>(checksum >> (8 * i));
  *log += payload;
}

}  // namespace

// The first byte gives the share of the input, in eighths, that is the file itself. The rest becomes a log of good
// frames in front of it.
SYNCOPATE_FUZZ_TARGET(record_log) {
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t raw = rest.size() * (data[0] % 9) / 8;
  std::string log;
  if (raw < rest.size()) {
    OneFile fresh("");
    if (!RecordWriter::Open(&fresh, "log", kMaxRecord).ok()) std::abort();
    log = fresh.bytes();
    for (size_t at = raw; at < rest.size();) {
      const size_t length = std::min<size_t>(static_cast<unsigned char>(rest[at]), rest.size() - at);
      Append(&log, rest.substr(at, length));
      at += std::max<size_t>(length, 1);
    }
  }
  log += rest.substr(0, raw);

  OneFile file(log);
  bool is_log = false;
  const std::vector<std::string> records = ReadAll(&file, &is_log);
  if (!is_log) return 0;
  if (records != GoodFrames(log)) std::abort();
  auto writer = RecordWriter::Open(&file, "log", kMaxRecord);
  if (!writer.ok() || !(*writer)->Append("more").ok() || !(*writer)->Sync().ok()) std::abort();
  std::vector<std::string> longer = records;
  longer.emplace_back("more");
  if (ReadAll(&file, &is_log) != longer || !is_log) std::abort();
  return 0;
}
