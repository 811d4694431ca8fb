#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace syncopate::synchronizer::ipc {

// A range of bytes that is contiguous at an upstream and here.
struct Segment {
  int32_t upstream = 0;  // index in the list of upstreams
  int32_t source = 0;    // rank whose bytes these are, from whichever upstream
  int64_t from = 0;      // in the upstream's memory
  int64_t to = 0;        // in the destination
  int64_t bytes = 0;
  friend bool operator==(const Segment&, const Segment&) = default;
};

// Decides which chunk a receiver copies next, and counts what has arrived. Chunks go strictly in the order of the
// segments, because that order gives every upstream one reader at a time, and never beyond what the upstream has
// itself. Pure bookkeeping; not thread-safe. Segments of one source are adjacent and in the order of the plan's copies,
// so a byte count for a source tells readers of this receiver exactly which bytes have arrived.
class FetchCursor {
 public:
  FetchCursor(std::vector<Segment> segments, int64_t chunk_bytes);

  // Records that the upstream now has `bytes` bytes of this source; a lower number than before is ignored.
  void Available(int32_t upstream, int32_t source, int64_t bytes);
  // Records that the upstream has all bytes.
  void AllAvailable(int32_t upstream);

  // The next chunk to copy, at most chunk_bytes long; nullopt if the upstream does not have it yet or all are issued.
  std::optional<Segment> Next();
  // Whether Next would return a chunk.
  bool ready() const { return NextBytes() > 0; }
  // Records that the oldest `count` chunks in flight have finished. Returns the sources of these chunks.
  std::vector<int32_t> Finish(int64_t count);

  int64_t in_flight() const { return static_cast<int64_t>(in_flight_.size()); }
  int64_t bytes_in_flight() const { return bytes_in_flight_; }
  // Number of bytes of this source that have arrived, counted from its first.
  int64_t progress(int32_t source) const;
  bool done() const { return current_ == segments_.size() && in_flight_.empty(); }
  // The upstream that Next waits for; -1 if all chunks are issued.
  int32_t waits_for() const { return current_ == segments_.size() ? -1 : segments_[current_].upstream; }

 private:
  int64_t NextBytes() const;

  const std::vector<Segment> segments_;
  const int64_t chunk_bytes_;
  size_t current_ = 0;
  int64_t issued_of_current_ = 0;
  std::map<int32_t, int64_t> issued_;                         // by source
  std::map<int32_t, int64_t> finished_;                       // by source
  std::map<std::pair<int32_t, int32_t>, int64_t> available_;  // by (upstream, source)
  std::vector<bool> complete_;                                // by upstream
  std::deque<Segment> in_flight_;
  int64_t bytes_in_flight_ = 0;
};

}  // namespace syncopate::synchronizer::ipc
