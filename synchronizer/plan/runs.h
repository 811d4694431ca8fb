#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "synchronizer/plan/layout.h"

// Internal to SyncPlan: which source supplies which elements of a destination's pieces.
namespace syncopate::synchronizer {

// Elements [begin, end) of a destination piece, as indices in the piece's dense order, and the source that supplies
// them.
struct Run {
  size_t piece = 0;  // index in the destination's pieces
  int64_t begin = 0;
  int64_t end = 0;
  int32_t source = 0;         // rank
  int64_t source_origin = 0;  // byte in that rank's buffer where element 0 of the tensor would be
};

// Finds a source for each element. Borrows manifest and layouts.
class RunFinder {
 public:
  RunFinder(const Manifest& manifest, const Layout& source, const Layout& destination);
  RunFinder(const RunFinder&) = delete;

  // The runs that fill the destination's pieces [first, last), all of one rank, in the order of its arena. A piece that
  // is not moved has no run. If several sources store the same elements, each supplies an equal share.
  // FAILED_PRECONDITION reason PLAN_INCOMPLETE naming tensor and element if no source stores an element.
  absl::StatusOr<std::vector<Run>> Fill(size_t first, size_t last) const;

 private:
  // Contiguous elements of one tensor in one source rank's buffer.
  struct Strip {
    int32_t rank = 0;
    int64_t begin = 0;
    int64_t end = 0;
    int64_t origin = 0;  // see Run::source_origin
  };
  // Elements [begin, end) of one tensor that each holder stores completely. Strips of distinct ranks, ascending by
  // rank.
  struct Segment {
    int64_t begin = 0;
    int64_t end = 0;
    std::vector<Strip> holders;
    size_t party = 0;  // number of this set of holder ranks
  };
  // A run whose source is not yet chosen among the holders of a segment.
  struct OpenRun {
    size_t piece = 0;
    int64_t begin = 0;
    int64_t end = 0;
    const Segment* segment = nullptr;
  };

  std::vector<std::vector<Strip>> StripsByTensor(const Layout& source) const;
  std::vector<Segment> Cut(const std::vector<Strip>& strips);
  absl::StatusOr<std::vector<OpenRun>> Cover(size_t piece) const;
  std::vector<Run> Share(const std::vector<OpenRun>& open) const;
  int64_t GetWidth(size_t piece) const;  // bytes of one element in the destination

  const Manifest& manifest_;
  const Layout& destination_;
  std::map<std::vector<int32_t>, size_t> parties_;
  std::vector<std::vector<Segment>> segments_;  // by tensor; ascending, without elements that no rank stores
};

}  // namespace syncopate::synchronizer
