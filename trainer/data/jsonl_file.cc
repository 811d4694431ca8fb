#include "trainer/data/jsonl_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/crc32c.h"
#include "base/file_system.h"
#include "base/git_lfs.h"
#include "base/sha256.h"
#include "base/status.h"

namespace syncopate::trainer {
namespace {

constexpr size_t kBlockBytes = 1 << 20;

absl::Status BadFile(const char* reason, const std::string& text) {
  return Error(absl::StatusCode::kInvalidArgument, reason, text);
}

// Reads until `size` bytes are there or the file ends.
absl::StatusOr<size_t> ReadAt(int file, const std::string& path, char* to, size_t size, int64_t offset) {
  size_t done = 0;
  while (done < size) {
    const ssize_t count = ::pread(file, to + done, size - done, offset + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FileError("read", path, errno);
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

}  // namespace

absl::Status CheckJsonlBeginning(absl::string_view text, const std::string& path) {
  if (absl::StartsWith(text, "\xef\xbb\xbf")) {
    return BadFile("BYTE_ORDER_MARK", absl::StrCat(path,
                                                   " begins with a byte order mark; take it away, e.g. by sed -i "
                                                   "'1s/^\\xEF\\xBB\\xBF//' ",
                                                   path));
  }
  if (absl::StartsWith(text, "\xff\xfe") || absl::StartsWith(text, "\xfe\xff")) {
    return BadFile("BYTE_ORDER_MARK",
                   absl::StrCat(path,
                                " begins with a byte order mark of UTF-16; write it as UTF-8 without one, e.g. by "
                                "iconv -f UTF-16 -t UTF-8"));
  }
  if (absl::StartsWith(text, "PAR1")) {
    return BadFile("PARQUET_FILE",
                   absl::StrCat(path, " is a parquet file; make a JSONL file of it: syncopate data convert ", path,
                                " --output ", path, ".jsonl"));
  }
  return RefuseLfsPointer(text, path);
}

// Takes the file's blocks in order and finds its rows. A line may be longer than any block, and than memory.
class JsonlFile::Indexer {
 public:
  explicit Indexer(JsonlFile* file) : file_(file) {}

  absl::Status Add(absl::string_view block) {
    sha256_.Update(block);
    while (!block.empty()) {
      const size_t end = block.find('\n');
      AddToLine(block.substr(0, end));
      if (end == absl::string_view::npos) break;
      SYNCOPATE_RETURN_IF_ERROR(EndLine());
      offset_ += 1;
      line_begin_ = offset_;
      block.remove_prefix(end + 1);
    }
    return absl::OkStatus();
  }

  absl::Status Finish() {
    if (offset_ > line_begin_) SYNCOPATE_RETURN_IF_ERROR(EndLine());
    file_->sha256_ = sha256_.FinishHex();
    return absl::OkStatus();
  }

 private:
  void AddToLine(absl::string_view part) {
    if (all_blank_) all_blank_ = std::all_of(part.begin(), part.end(), IsBlank);
    crc_ = Crc32c(part, crc_);
    offset_ += static_cast<int64_t>(part.size());
  }

  absl::Status EndLine() {
    if (all_blank_) {
      ++blanks_;
    } else {
      if (file_->rows() == kMaxRows) {
        return BadFile("TOO_MANY_ROWS", absl::StrCat(file_->path_, " has more than ", kMaxRows, " rows; split it"));
      }
      const int64_t known = file_->blank_lines_.empty() ? 0 : file_->blank_lines_.back().second;
      // Blank lines are counted so that a message names the line number that an editor shows.
      if (blanks_ > known) file_->blank_lines_.emplace_back(file_->rows(), blanks_);
      const int64_t bytes = std::min(offset_ - line_begin_, kMaxRowBytes + 1);
      // Sixteen bytes a row: the file itself stays on disk, however large it is, and rows are read as they are needed.
      file_->rows_.push_back({line_begin_, static_cast<uint32_t>(bytes), crc_});
    }
    all_blank_ = true;
    crc_ = 0;
    return absl::OkStatus();
  }

  JsonlFile* const file_;
  Sha256 sha256_;
  int64_t offset_ = 0;      // of the next byte
  int64_t line_begin_ = 0;  // of the line it is in
  int64_t blanks_ = 0;      // lines so far
  bool all_blank_ = true;
  uint32_t crc_ = 0;
};

absl::StatusOr<std::unique_ptr<JsonlFile>> JsonlFile::Open(const std::string& path) {
  auto file = std::unique_ptr<JsonlFile>(new JsonlFile(path));
  // A pipe would block for ever.
  file->file_ = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file->file_.valid()) return FileError("open", path, errno);
  SYNCOPATE_ASSIGN_OR_RETURN(file->stamp_, file->ReadStamp());
  SYNCOPATE_RETURN_IF_ERROR(file->BuildIndex());
  SYNCOPATE_ASSIGN_OR_RETURN(const Stamp after, file->ReadStamp());
  // The file is being written: its rows would be those of two versions.
  if (after != file->stamp_) return file->Changed("while its lines were counted");
  if (file->rows() == 0) return BadFile("EMPTY_FILE", absl::StrCat(path, " contains no rows"));
  file->rows_.shrink_to_fit();
  return file;
}

absl::StatusOr<JsonlFile::Stamp> JsonlFile::ReadStamp() const {
  struct stat facts;
  if (::fstat(file_.get(), &facts) != 0) return FileError("look at", path_, errno);
  if (!S_ISREG(facts.st_mode)) return BadFile("NO_FILE", absl::StrCat(path_, " is no file but a folder or device"));
  return Stamp{facts.st_size, facts.st_mtim.tv_sec * 1'000'000'000 + facts.st_mtim.tv_nsec};
}

absl::Status JsonlFile::BuildIndex() {
  Indexer indexer(this);
  std::string block(kBlockBytes, '\0');
  for (int64_t offset = 0; offset < stamp_.bytes;) {
    SYNCOPATE_ASSIGN_OR_RETURN(const size_t count, ReadAt(file_.get(), path_, block.data(), block.size(), offset));
    if (count == 0) break;
    if (offset == 0) SYNCOPATE_RETURN_IF_ERROR(CheckJsonlBeginning(absl::string_view(block).substr(0, count), path_));
    SYNCOPATE_RETURN_IF_ERROR(indexer.Add(absl::string_view(block).substr(0, count)));
    offset += static_cast<int64_t>(count);
  }
  return indexer.Finish();
}

absl::StatusOr<std::string> JsonlFile::Read(int64_t row) const {
  const Row& entry = rows_[static_cast<size_t>(row)];
  if (entry.bytes > kMaxRowBytes) {
    return BadFile("ROW_TOO_LARGE", absl::StrCat("the line has more than ", kMaxRowBytes, " bytes"));
  }
  std::string text(entry.bytes, '\0');
  SYNCOPATE_ASSIGN_OR_RETURN(const size_t count, ReadAt(file_.get(), path_, text.data(), text.size(), entry.begin));
  SYNCOPATE_ASSIGN_OR_RETURN(const Stamp now, ReadStamp());
  if (now.bytes != stamp_.bytes) {
    return Changed(absl::StrCat("since the run began: it had ", stamp_.bytes, " bytes and has ", now.bytes));
  }
  // A change is found by the row's checksum, as modification times cannot be relied upon.
  if (count != text.size() || Crc32c(text) != entry.crc32c) {
    return Changed(absl::StrCat("since the run began: line ", Where(row), " is another"));
  }
  if (now != stamp_) return Changed("since the run began: it was written to");
  if (!text.empty() && text.back() == '\r') text.pop_back();
  return text;
}

absl::Status JsonlFile::Changed(const std::string& what) const {
  return Error(absl::StatusCode::kFailedPrecondition, "DATA_FILE_CHANGED",
               absl::StrCat(path_, " was changed ", what,
                            "; a run needs its files as they were: put them back and resume it, or begin another run"));
}

std::string JsonlFile::Where(int64_t row) const {
  auto after = std::upper_bound(blank_lines_.begin(), blank_lines_.end(), row,
                                [](int64_t a, const auto& entry) { return a < entry.first; });
  const int64_t blanks = after == blank_lines_.begin() ? 0 : std::prev(after)->second;
  return absl::StrCat(path_, ":", row + blanks + 1);
}

}  // namespace syncopate::trainer
