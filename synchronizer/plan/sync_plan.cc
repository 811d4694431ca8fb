#include "synchronizer/plan/sync_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "base/status.h"

namespace syncopate::synchronizer {
namespace {

// Elements [begin, end) of one tensor, and the source pieces (ascending) that all hold the whole of it.
struct Segment {
  int64_t begin = 0;
  int64_t end = 0;
  std::vector<size_t> holders;
};

// Cuts each tensor at every piece boundary. Indexed by tensor, ordered by begin; elements nobody holds are left out.
std::vector<std::vector<Segment>> SegmentsOf(const Manifest& manifest, const Layout& source) {
  struct Edges {
    std::vector<size_t> opening;
    std::vector<size_t> closing;
  };
  std::vector<std::map<int64_t, Edges>> edges(manifest.tensors().size());
  for (size_t i = 0; i < source.pieces().size(); ++i) {
    const Piece& piece = source.pieces()[i];
    edges[piece.tensor][piece.begin].opening.push_back(i);
    edges[piece.tensor][piece.end].closing.push_back(i);
  }
  std::vector<std::vector<Segment>> segments(edges.size());
  for (size_t tensor = 0; tensor < edges.size(); ++tensor) {
    std::set<size_t> open;
    for (auto edge = edges[tensor].begin(); edge != edges[tensor].end(); ++edge) {
      for (size_t piece : edge->second.closing) open.erase(piece);
      open.insert(edge->second.opening.begin(), edge->second.opening.end());
      if (open.empty()) continue;
      segments[tensor].push_back({edge->first, std::next(edge)->first, {open.begin(), open.end()}});
    }
  }
  return segments;
}

// A copy of elements [begin, end) and the pieces it lies in.
struct Step {
  Copy copy;
  int64_t begin = 0;
  int64_t end = 0;
  size_t from = 0;
  size_t to = 0;
};

class Planner {
 public:
  Planner(const Manifest& manifest, const Layout& source, const Layout& destination)
      : manifest_(manifest), source_(source), destination_(destination), segments_(SegmentsOf(manifest, source)) {}

  absl::StatusOr<std::vector<Copy>> Run() {
    for (size_t to = 0; to < destination_.pieces().size(); ++to) {
      SYNCOPATE_RETURN_IF_ERROR(Cover(to));
    }
    return std::move(copies_);
  }

 private:
  absl::Status Cover(size_t to) {
    const Piece& wanted = destination_.pieces()[to];
    const std::vector<Segment>& segments = segments_[wanted.tensor];
    auto segment = std::upper_bound(segments.begin(), segments.end(), wanted.begin,
                                    [](int64_t at, const Segment& s) { return at < s.end; });
    for (int64_t at = wanted.begin; at < wanted.end; ++segment) {
      if (segment == segments.end() || segment->begin > at) {
        const std::string& name = manifest_.tensors()[wanted.tensor].name;
        return Error(
            absl::StatusCode::kFailedPrecondition, "PLAN_INCOMPLETE",
            absl::StrFormat("rank %d wants element %d of %s, which no source rank has", wanted.rank, at, name));
      }
      int64_t end = std::min(wanted.end, segment->end);
      Append(MakeStep(segment->holders[wanted.rank % segment->holders.size()], to, at, end));
      at = end;
    }
    return absl::OkStatus();
  }

  Step MakeStep(size_t from, size_t to, int64_t begin, int64_t end) const {
    const Piece& have = source_.pieces()[from];
    const Piece& want = destination_.pieces()[to];
    int64_t width = DTypeBytes(manifest_.tensors()[want.tensor].dtype);
    Copy copy{have.rank, want.rank, have.offset + (begin - have.begin) * width,
              want.offset + (begin - want.begin) * width, (end - begin) * width};
    return {copy, begin, end, from, to};
  }

  // Extends the last copy over `next` where both sides go on without a gap, or with the same padding.
  void Append(const Step& next) {
    if (!copies_.empty() && Continues(next)) {
      Copy& merged = copies_.back();
      merged.bytes = next.copy.source_offset + next.copy.bytes - merged.source_offset;
    } else {
      copies_.push_back(next.copy);
    }
    last_ = next;
  }

  bool Continues(const Step& next) const {
    if (last_.copy.source != next.copy.source || last_.copy.destination != next.copy.destination) return false;
    int64_t source_gap = next.copy.source_offset - last_.copy.source_offset - last_.copy.bytes;
    int64_t destination_gap = next.copy.destination_offset - last_.copy.destination_offset - last_.copy.bytes;
    if (source_gap != destination_gap || source_gap < 0) return false;
    // Padding, not somebody else's piece, iff the two copies lie in neighbouring pieces and reach their common border.
    bool padding = last_.from + 1 == next.from && last_.to + 1 == next.to &&
                   last_.end == source_.pieces()[last_.from].end && next.begin == source_.pieces()[next.from].begin &&
                   last_.end == destination_.pieces()[last_.to].end;
    return source_gap == 0 || (padding && source_gap < Manifest::kAlignment);
  }

  const Manifest& manifest_;
  const Layout& source_;
  const Layout& destination_;
  std::vector<std::vector<Segment>> segments_;
  std::vector<Copy> copies_;
  Step last_;
};

uint64_t HashOf(const Manifest& manifest, const Layout& source, const Layout& destination,
                const std::vector<Copy>& copies) {
  uint64_t hash = manifest.fingerprint();
  for (const Layout* layout : {&source, &destination}) {
    hash = HashCombine(hash, static_cast<uint64_t>(layout->ranks()));
    for (int32_t rank = 0; rank < layout->ranks(); ++rank) {
      hash = HashCombine(hash, static_cast<uint64_t>(layout->arena_bytes(rank)));
    }
  }
  for (const Copy& copy : copies) {
    for (int64_t field :
         {int64_t{copy.source}, int64_t{copy.destination}, copy.source_offset, copy.destination_offset, copy.bytes}) {
      hash = HashCombine(hash, static_cast<uint64_t>(field));
    }
  }
  return hash;
}

}  // namespace

absl::StatusOr<SyncPlan> SyncPlan::Create(const Manifest& manifest, const Layout& source, const Layout& destination) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<Copy> copies, Planner(manifest, source, destination).Run());
  uint64_t hash = HashOf(manifest, source, destination, copies);
  return SyncPlan(std::move(copies), hash);
}

std::vector<Copy> SyncPlan::CopiesTo(int32_t destination) const {
  std::vector<Copy> mine;
  std::copy_if(copies_.begin(), copies_.end(), std::back_inserter(mine),
               [destination](const Copy& copy) { return copy.destination == destination; });
  return mine;
}

int64_t SyncPlan::bytes() const {
  int64_t sum = 0;
  for (const Copy& copy : copies_) sum += copy.bytes;
  return sum;
}

std::string SyncPlan::ToString() const {
  std::string text = absl::StrFormat("plan %016x: %d copies, %d bytes\n", hash_, copies_.size(), bytes());
  for (const Copy& copy : copies_) {
    absl::StrAppendFormat(&text, "  source %d [%d, %d) -> destination %d [%d, %d)\n", copy.source, copy.source_offset,
                          copy.source_offset + copy.bytes, copy.destination, copy.destination_offset,
                          copy.destination_offset + copy.bytes);
  }
  return text;
}

}  // namespace syncopate::synchronizer
