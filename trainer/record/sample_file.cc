#include "trainer/record/sample_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "trainer/record/sample_record.h"

namespace syncopate::trainer {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;

// Calls `visit` with each line of a file, its end included; the last one may lack it. OK if there is no file.
template <typename Visit>
absl::Status ForLines(FileSystem* files, const std::string& path, const Visit& visit) {
  auto file = files->OpenForRead(path);
  if (absl::IsNotFound(file.status())) return absl::OkStatus();
  SYNCOPATE_RETURN_IF_ERROR(file.status());
  std::string rest;
  while (true) {
    SYNCOPATE_ASSIGN_OR_RETURN(const std::string chunk, (*file)->Read(kChunkBytes));
    if (chunk.empty()) break;
    rest += chunk;
    size_t begin = 0;
    for (size_t end = rest.find('\n'); end != std::string::npos; end = rest.find('\n', begin)) {
      SYNCOPATE_RETURN_IF_ERROR(visit(absl::string_view(rest).substr(begin, end + 1 - begin)));
      begin = end + 1;
    }
    rest.erase(0, begin);
  }
  return rest.empty() ? absl::OkStatus() : visit(absl::string_view(rest));
}

bool IsKept(absl::string_view line, int64_t restored_step) {
  if (line.back() != '\n') return false;
  const std::optional<SampleHead> head = ReadSampleHead(line);
  return head.has_value() && !IsUndone(*head, restored_step);
}

}  // namespace

SampleFile::SampleFile(FileSystem* files, Options options, const Clock* clock)
    : files_(files),
      options_(std::move(options)),
      path_(JoinPath(options_.folder, "samples.jsonl")),
      older_(JoinPath(options_.folder, "samples.1.jsonl")),
      clock_(clock) {}

void SampleFile::Begin() {
  const absl::Time now = clock_->Now();
  if (begun_ || now < next_try_) return;
  const absl::Status begun = TryBegin();
  begun_ = begun.ok();
  next_try_ = now + kRetry;
  if (!begun.ok()) SYNCOPATE_LOG(kError, "samples.jsonl gets no lines yet: %s", begun.ToString());
}

absl::Status SampleFile::TryBegin() const {
  SYNCOPATE_RETURN_IF_ERROR(RemoveUndone(older_));
  return RemoveUndone(path_);
}

// Writes what stays into another file, which then takes the place of this one: a reader finds one or the other.
absl::Status SampleFile::RemoveUndone(const std::string& path) const {
  bool all_stay = true;
  SYNCOPATE_RETURN_IF_ERROR(ForLines(files_, path, [&](absl::string_view line) {
    all_stay = all_stay && IsKept(line, options_.restored_step);
    return absl::OkStatus();
  }));
  if (all_stay) return absl::OkStatus();
  const std::string temporary = path + ".tmp";
  SYNCOPATE_RETURN_IF_ERROR(files_->RemoveTree(temporary));
  SYNCOPATE_ASSIGN_OR_RETURN(auto kept, files_->OpenForAppend(temporary, FileSystem::OpenMode::kCreateNew));
  SYNCOPATE_RETURN_IF_ERROR(ForLines(files_, path, [&](absl::string_view line) {
    return IsKept(line, options_.restored_step) ? kept->Append(line) : absl::OkStatus();
  }));
  SYNCOPATE_RETURN_IF_ERROR(kept->Sync());
  SYNCOPATE_RETURN_IF_ERROR(files_->Rename(temporary, path));
  return files_->SyncDir(options_.folder);
}

absl::Status SampleFile::OpenFile() {
  SYNCOPATE_ASSIGN_OR_RETURN(file_, files_->OpenForAppend(path_, FileSystem::OpenMode::kOpenOrCreate));
  whole_bytes_ = file_->size();
  return absl::OkStatus();
}

absl::Status SampleFile::Write(absl::string_view line) {
  if (!begun_) return Error(absl::StatusCode::kUnavailable, "NOT_BEGUN", "it cannot be read, or not be shortened");
  const auto bytes = static_cast<int64_t>(line.size()) + 1, most = options_.max_bytes / 2;
  if (bytes > most) {
    return Error(absl::StatusCode::kResourceExhausted, "LINE_TOO_LONG",
                 absl::StrCat("a sample takes ", bytes, " bytes, and half of metrics.samples_bytes is ", most,
                              ": raise metrics.samples_bytes"));
  }
  if (file_ == nullptr) SYNCOPATE_RETURN_IF_ERROR(OpenFile());
  if (file_->size() > whole_bytes_) SYNCOPATE_RETURN_IF_ERROR(file_->Truncate(whole_bytes_));
  if (whole_bytes_ + bytes > most) {
    file_.reset();
    SYNCOPATE_RETURN_IF_ERROR(files_->Rename(path_, older_));
    SYNCOPATE_RETURN_IF_ERROR(OpenFile());
  }
  const absl::Status written = file_->Append(absl::StrCat(line, "\n"));
  if (written.ok()) {
    whole_bytes_ += bytes;
  } else {
    file_->Truncate(whole_bytes_).IgnoreError();  // tried again before the next line, which half a line would spoil
  }
  return written;
}

void SampleFile::Append(absl::string_view line) {
  Begin();
  const absl::Status written = Write(line);
  if (!written.ok() && !failed_) SYNCOPATE_LOG(kError, "samples.jsonl loses lines: %s", written.ToString());
  failed_ = !written.ok();
  lost_ += written.ok() ? 0 : 1;
}

}  // namespace syncopate::trainer
