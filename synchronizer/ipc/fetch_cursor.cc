#include "synchronizer/ipc/fetch_cursor.h"

#include <algorithm>

#include "base/status.h"

namespace syncopate::synchronizer::ipc {

FetchCursor::FetchCursor(std::vector<Segment> segments, int64_t chunk_bytes)
    : segments_(std::move(segments)), chunk_bytes_(chunk_bytes) {
  SYNCOPATE_CHECK(chunk_bytes > 0);
  for (const Segment& segment : segments_) {
    SYNCOPATE_CHECK(segment.bytes > 0 && segment.upstream >= 0);
    complete_.resize(std::max(complete_.size(), static_cast<size_t>(segment.upstream) + 1), false);
  }
}

void FetchCursor::Available(int32_t upstream, int32_t source, int64_t bytes) {
  // A message may give a smaller number than an earlier one; available bytes stay available.
  int64_t& known = available_[{upstream, source}];
  known = std::max(known, bytes);
}

void FetchCursor::AllAvailable(int32_t upstream) {
  if (upstream < static_cast<int32_t>(complete_.size())) complete_[upstream] = true;
}

int64_t FetchCursor::NextBytes() const {
  if (current_ == segments_.size()) return 0;
  const Segment& segment = segments_[current_];
  int64_t bytes = std::min(chunk_bytes_, segment.bytes - issued_of_current_);
  // Progress is counted from the start of a source's part, and every reader takes the parts in the same order. So
  // available bytes minus issued bytes can be copied now.
  if (complete_[segment.upstream]) return bytes;
  auto available = available_.find({segment.upstream, segment.source});
  auto issued = issued_.find(segment.source);
  int64_t left =
      (available == available_.end() ? 0 : available->second) - (issued == issued_.end() ? 0 : issued->second);
  return std::min(bytes, left);
}

std::optional<Segment> FetchCursor::Next() {
  const int64_t bytes = NextBytes();
  if (bytes <= 0) return std::nullopt;
  const Segment& segment = segments_[current_];
  Segment chunk = segment;
  chunk.from += issued_of_current_;
  chunk.to += issued_of_current_;
  chunk.bytes = bytes;
  issued_[segment.source] += bytes;
  issued_of_current_ += bytes;
  if (issued_of_current_ == segment.bytes) {
    ++current_;
    issued_of_current_ = 0;
  }
  in_flight_.push_back(chunk);
  bytes_in_flight_ += bytes;
  return chunk;
}

std::vector<int32_t> FetchCursor::Finish(int64_t count) {
  SYNCOPATE_CHECK(count <= in_flight());
  std::vector<int32_t> sources;
  for (; count > 0; --count) {
    // Copies of a queue finish in the order in which they were issued.
    const Segment& chunk = in_flight_.front();
    finished_[chunk.source] += chunk.bytes;
    bytes_in_flight_ -= chunk.bytes;
    if (sources.empty() || sources.back() != chunk.source) sources.push_back(chunk.source);
    in_flight_.pop_front();
  }
  return sources;
}

int64_t FetchCursor::progress(int32_t source) const {
  auto found = finished_.find(source);
  return found == finished_.end() ? 0 : found->second;
}

}  // namespace syncopate::synchronizer::ipc
