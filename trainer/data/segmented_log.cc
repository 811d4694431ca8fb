#include "trainer/data/segmented_log.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"

namespace syncopate::trainer {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
constexpr size_t kGenerationDigits = 6;
constexpr size_t kSequenceDigits = 20;
constexpr absl::string_view kSuffix = ".log";

absl::Status Damaged(const std::string& path, absl::string_view what) {
  return Error(absl::StatusCode::kDataLoss, "LOG_DAMAGED",
               absl::StrCat(path, " is damaged: ", what,
                            "; restore it from a copy, or move the folder away to resume from the checkpoint alone"),
               {{"path", path}});
}

}  // namespace

absl::Status SegmentedLog::Options::Validate() const {
  auto bad = [](absl::string_view what) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS", absl::StrCat("log: ", what));
  };
  if (folder.empty()) return bad("no folder given");
  if (segment_bytes <= kRecordLogHeaderBytes) return bad("segment_bytes is too small");
  if (max_record_bytes < 1 || max_record_bytes > std::numeric_limits<uint32_t>::max()) {
    return bad("max_record_bytes is not in [1, 2^32)");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SegmentedLog>> SegmentedLog::Open(FileSystem* files, const Options& options,
                                                                 const ReplayCallback& replay) {
  SYNCOPATE_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<SegmentedLog> log(new SegmentedLog(files, options));
  SYNCOPATE_RETURN_IF_ERROR(files->CreateDirs(options.folder));
  SYNCOPATE_RETURN_IF_ERROR(log->FindSegments());
  SYNCOPATE_RETURN_IF_ERROR(log->ReplayAll(replay));
  SYNCOPATE_RETURN_IF_ERROR(log->SealTail());
  SYNCOPATE_RETURN_IF_ERROR(log->BeginGeneration());
  return log;
}

std::optional<SegmentedLog::Segment> SegmentedLog::ParseName(const std::string& name) {
  absl::string_view rest(name);
  if (rest.size() != 2 + kGenerationDigits + kSequenceDigits + kSuffix.size()) return std::nullopt;
  Segment segment;
  bool numbers = absl::SimpleAtoi(rest.substr(1, kGenerationDigits), &segment.generation) &&
                 absl::SimpleAtoi(rest.substr(2 + kGenerationDigits, kSequenceDigits), &segment.first);
  if (!numbers || segment.first == 0) return std::nullopt;
  segment.name = NameSegment(segment.generation, segment.first).name;
  return segment.name == name ? std::make_optional(segment) : std::nullopt;
}

SegmentedLog::Segment SegmentedLog::NameSegment(int64_t generation, uint64_t first) {
  return {generation, first, absl::StrFormat("g%06d-%020d%s", generation, first, kSuffix)};
}

absl::Status SegmentedLog::FindSegments() {
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<std::string> names, files_->List(options_.folder));
  std::vector<Segment> found;
  for (const std::string& name : names) {
    if (auto segment = ParseName(name)) found.push_back(*std::move(segment));
  }
  std::sort(found.begin(), found.end(), [](const Segment& a, const Segment& b) {
    return std::tie(a.generation, a.first) < std::tie(b.generation, b.first);
  });
  for (size_t i = 0; i < found.size(); ++i) {
    auto later = std::find_if(found.begin() + static_cast<int64_t>(i), found.end(),
                              [&](const Segment& other) { return other.generation > found[i].generation; });
    // An empty file that begins where its successor does is no sign of anything.
    // Each incarnation of a trainer begins a generation at the sequence where it found the log's end. A former process
    // that still writes goes on in its own generation, beyond that place: its records are ignored.
    bool fenced = later != found.end() && found[i].first > later->first;
    (fenced ? fenced_ : segments_).push_back(found[i]);
  }
  return absl::OkStatus();
}

absl::Status SegmentedLog::ReplayAll(const ReplayCallback& replay) {
  std::string damage;
  if (!segments_.empty()) next_sequence_ = segments_.front().first;
  for (size_t i = 0; i < segments_.size(); ++i) {
    // A gap: records that were acknowledged are not here. Only the very end may be torn.
    if (next_sequence_ != segments_[i].first) {
      std::string what = damage.empty() ? "its end is missing" : damage;
      return Damaged(GetPath(segments_[i - 1]),
                     absl::StrFormat("records %d to %d: %s", next_sequence_, segments_[i].first - 1, what));
    }
    uint64_t limit = i + 1 < segments_.size() ? segments_[i + 1].first : kNoLimit;
    SYNCOPATE_ASSIGN_OR_RETURN(damage, ReplaySegment(segments_[i], limit, replay));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> SegmentedLog::ReplaySegment(const Segment& segment, uint64_t limit,
                                                        const ReplayCallback& replay) {
  SYNCOPATE_ASSIGN_OR_RETURN(RecordReader reader,
                             RecordReader::Open(files_, GetPath(segment), options_.max_record_bytes));
  while (true) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::optional<std::string> record, reader.Next());
    if (!record.has_value()) return reader.damage();
    // Written by the former process after the next generation had begun.
    if (next_sequence_ >= limit) {
      ++replayed_.ignored_records;
      continue;
    }
    SYNCOPATE_RETURN_IF_ERROR(
        Annotate(replay(next_sequence_, *record), absl::StrCat("record ", next_sequence_, " in ", GetPath(segment))));
    ++next_sequence_;
    ++replayed_.records;
  }
}

absl::Status SegmentedLog::SealTail() {
  if (segments_.empty()) return absl::OkStatus();
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<RecordWriter> tail,
                             RecordWriter::Open(files_, GetPath(segments_.back()), options_.max_record_bytes));
  replayed_.cut_bytes = tail->cut_bytes();
  replayed_.damage = tail->damage();
  if (replayed_.cut_bytes > 0) {
    SYNCOPATE_LOG(kWarning, "%s: %d bytes that were never acknowledged were cut off its end (%s)",
                  GetPath(segments_.back()), replayed_.cut_bytes, replayed_.damage);
  }
  return absl::OkStatus();
}

absl::Status SegmentedLog::BeginGeneration() {
  int64_t newest = segments_.empty() ? 0 : segments_.back().generation;
  Segment segment = NameSegment(newest + 1, next_sequence_);
  auto writer = RecordWriter::Create(files_, GetPath(segment), options_.max_record_bytes);
  if (writer.status().code() == absl::StatusCode::kAlreadyExists) {
    return Error(absl::StatusCode::kFailedPrecondition, "LOG_IN_USE",
                 absl::StrCat("another process has just opened the log in ", options_.folder,
                              "; let one trainer at a time use a run directory"));
  }
  SYNCOPATE_RETURN_IF_ERROR(writer.status());
  writer_ = *std::move(writer);
  segments_.push_back(std::move(segment));
  committed_sequence_ = next_sequence_;
  // Only now are they sure to be beyond the end: the new generation's name is durable.
  for (const Segment& stale : fenced_) {
    SYNCOPATE_LOG(kWarning, "%s was written by a process that had lost the log; it is removed", GetPath(stale));
    SYNCOPATE_RETURN_IF_ERROR(files_->RemoveTree(GetPath(stale)));
  }
  fenced_.clear();
  return absl::OkStatus();
}

absl::Status SegmentedLog::BeginSegment() {
  Segment segment = NameSegment(segments_.back().generation, next_sequence_);
  // Removes the file of an attempt that failed half-way: after a failed sync, page cache and disk may differ.
  SYNCOPATE_RETURN_IF_ERROR(files_->RemoveTree(GetPath(segment)));
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<RecordWriter> writer,
                             RecordWriter::Create(files_, GetPath(segment), options_.max_record_bytes));
  writer_ = std::move(writer);
  segments_.push_back(std::move(segment));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SegmentedLog::Append(absl::string_view payload) {
  // A segment ends between commits only, so that a commit syncs one file.
  if (writer_->size() >= options_.segment_bytes && next_sequence_ == committed_sequence_) {
    SYNCOPATE_RETURN_IF_ERROR(BeginSegment());
  }
  SYNCOPATE_RETURN_IF_ERROR(writer_->Append(payload));
  return next_sequence_++;
}

absl::Status SegmentedLog::Commit() {
  if (next_sequence_ == committed_sequence_) return absl::OkStatus();
  absl::Status status = writer_->Sync();
  if (status.ok()) {
    committed_sequence_ = next_sequence_;
  } else {
    // The writer has taken them back, too, so their numbers are free.
    next_sequence_ = committed_sequence_;
  }
  return status;
}

absl::Status SegmentedLog::PruneBefore(uint64_t sequence) {
  bool removed = false;
  // Oldest first, and out of the list only once deleted: a crash or an error leaves a log without gaps.
  while (segments_.size() > 1 && segments_[1].first <= sequence) {
    SYNCOPATE_RETURN_IF_ERROR(files_->RemoveTree(GetPath(segments_.front())));
    segments_.erase(segments_.begin());
    removed = true;
  }
  return removed ? files_->SyncDir(options_.folder) : absl::OkStatus();
}

}  // namespace syncopate::trainer
