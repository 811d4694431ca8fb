#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"

namespace syncopate::trainer {

// A file with one JSON object per line. Keeps an index of 16 bytes per row in memory, and no row. Lines of
// blanks alone are no rows. The file belongs to the user and may change, so each row that is read is compared with its
// checksum from when the file was opened. Thread-safe; links are followed.
class JsonlFile {
 public:
  static constexpr int64_t kMaxRowBytes = 8 << 20;
  static constexpr int64_t kMaxRows = 100'000'000;

  // Reads all of the file once. Blocks for the disk. NOT_FOUND and PERMISSION_DENIED as base/file_system.h;
  // INVALID_ARGUMENT: reason BYTE_ORDER_MARK, PARQUET_FILE, LFS_POINTER, EMPTY_FILE, TOO_MANY_ROWS or NO_FILE (a
  // folder, a pipe); FAILED_PRECONDITION: reason DATA_FILE_CHANGED if the file changed meanwhile.
  static absl::StatusOr<std::unique_ptr<JsonlFile>> Open(const std::string& path);

  // The row's text, without its line end. INVALID_ARGUMENT (reason ROW_TOO_LARGE) if it has more than kMaxRowBytes;
  // FAILED_PRECONDITION (reason DATA_FILE_CHANGED) if size or time of the file or the bytes of the row are others than
  // at first; UNAVAILABLE (reason IO_ERROR). Blocks for the disk. `row` is in [0, rows()).
  absl::StatusOr<std::string> Read(int64_t row) const;

  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }
  // For messages: "train.jsonl:17", lines from 1.
  std::string Where(int64_t row) const;
  const std::string& path() const { return path_; }
  const std::string& sha256() const { return sha256_; }
  int64_t bytes() const { return stamp_.bytes; }

 private:
  class Indexer;
  struct Row {
    int64_t begin = 0;
    uint32_t bytes = 0;  // at most kMaxRowBytes + 1, which stands for more
    uint32_t crc32c = 0;
  };
  struct Stamp {
    int64_t bytes = 0;
    int64_t modified_ns = 0;
    friend bool operator==(const Stamp&, const Stamp&) = default;
  };

  explicit JsonlFile(std::string path) : path_(std::move(path)) {}
  absl::StatusOr<Stamp> ReadStamp() const;
  absl::Status BuildIndex();
  absl::Status Changed(const std::string& what) const;

  const std::string path_;
  FileDescriptor file_;
  Stamp stamp_;
  std::vector<Row> rows_;
  std::vector<std::pair<int64_t, int64_t>> blank_lines_;  // row, and the number of blank lines before it in the file
  std::string sha256_;
};

// Checks whether a file with these first bytes can contain rows. INVALID_ARGUMENT: reason BYTE_ORDER_MARK, PARQUET_FILE
// or LFS_POINTER, with the remedy. Pure.
absl::Status CheckJsonlBeginning(absl::string_view text, const std::string& path);

}  // namespace syncopate::trainer
