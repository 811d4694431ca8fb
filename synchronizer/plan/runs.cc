#include "synchronizer/plan/runs.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::synchronizer {
namespace {

// The number of the piece's elements that come before element `element` of the tensor.
int64_t DenseIndex(const Piece& piece, int64_t element) {
  int64_t ahead = std::max<int64_t>(element - piece.begin, 0);
  if (piece.rows == 1) return std::min(ahead, piece.row_elements());
  int64_t row = std::min(ahead / piece.stride, piece.rows);
  if (row == piece.rows) return piece.elements();
  return row * piece.row_elements() + std::min(ahead % piece.stride, piece.row_elements());
}

// The index in the tensor of the piece's element number `dense`.
int64_t ElementAt(const Piece& piece, int64_t dense) {
  return piece.begin + dense / piece.row_elements() * piece.stride + dense % piece.row_elements();
}

}  // namespace

RunFinder::RunFinder(const Manifest& manifest, const Layout& source, const Layout& destination)
    : manifest_(manifest), destination_(destination) {
  for (const std::vector<Strip>& strips : StripsByTensor(source)) segments_.push_back(Cut(strips));
}

std::vector<std::vector<RunFinder::Strip>> RunFinder::StripsByTensor(const Layout& source) const {
  std::vector<std::vector<Strip>> strips(manifest_.tensors().size());
  for (const Piece& piece : source.pieces()) {
    int64_t width = DTypeBytes(source.ToDType(manifest_.tensors()[piece.tensor]));
    bool joined = piece.rows == 1 || piece.stride == piece.row_elements();
    int64_t rows = joined ? 1 : piece.rows;
    int64_t elements = joined ? piece.elements() : piece.row_elements();
    for (int64_t row = 0; row < rows; ++row) {
      int64_t begin = piece.begin + row * piece.stride;
      int64_t origin = piece.offset + (row * elements - begin) * width;
      strips[piece.tensor].push_back({piece.rank, begin, begin + elements, origin});
    }
  }
  return strips;
}

// Cuts a tensor at every boundary of a strip.
std::vector<RunFinder::Segment> RunFinder::Cut(const std::vector<Strip>& strips) {
  struct Edges {
    std::vector<size_t> opening;
    std::vector<size_t> closing;
  };
  std::map<int64_t, Edges> edges;
  for (size_t i = 0; i < strips.size(); ++i) {
    edges[strips[i].begin].opening.push_back(i);
    edges[strips[i].end].closing.push_back(i);
  }
  std::vector<Segment> segments;
  std::set<std::pair<int32_t, size_t>> open;  // (rank, strip)
  for (auto edge = edges.begin(); edge != edges.end(); ++edge) {
    for (size_t strip : edge->second.closing) open.erase({strips[strip].rank, strip});
    for (size_t strip : edge->second.opening) open.insert({strips[strip].rank, strip});
    if (open.empty()) continue;
    Segment segment{edge->first, std::next(edge)->first, {}, 0};
    std::vector<int32_t> ranks;
    for (const auto& [rank, strip] : open) {
      if (!ranks.empty() && ranks.back() == rank) continue;  // this rank stores the elements twice
      ranks.push_back(rank);
      segment.holders.push_back(strips[strip]);
    }
    segment.party = parties_.emplace(std::move(ranks), parties_.size()).first->second;
    segments.push_back(std::move(segment));
  }
  return segments;
}

absl::StatusOr<std::vector<Run>> RunFinder::Fill(size_t first, size_t last) const {
  std::vector<OpenRun> open;
  for (size_t piece = first; piece < last; ++piece) {
    if (!destination_.Moves(destination_.pieces()[piece].tensor)) continue;
    SYNCOPATE_ASSIGN_OR_RETURN(std::vector<OpenRun> covered, Cover(piece));
    open.insert(open.end(), covered.begin(), covered.end());
  }
  return Share(open);
}

absl::StatusOr<std::vector<RunFinder::OpenRun>> RunFinder::Cover(size_t piece) const {
  const Piece& wanted = destination_.pieces()[piece];
  const std::vector<Segment>& segments = segments_[wanted.tensor];
  auto segment = std::upper_bound(segments.begin(), segments.end(), wanted.begin,
                                  [](int64_t at, const Segment& s) { return at < s.end; });
  std::vector<OpenRun> open;
  for (int64_t at = 0; at < wanted.elements();) {
    int64_t element = ElementAt(wanted, at);
    while (segment != segments.end() && segment->end <= element) ++segment;
    if (segment == segments.end() || segment->begin > element) {
      const std::string& name = manifest_.tensors()[wanted.tensor].name;
      return Error(
          absl::StatusCode::kFailedPrecondition, reason::kPlanIncomplete,
          absl::StrFormat("rank %d needs element %d of %s, which no source rank has", wanted.rank, element, name));
    }
    int64_t end = DenseIndex(wanted, segment->end);
    open.push_back({piece, at, end, &*segment});
    at = end;
  }
  return open;
}

// Several ranks may store the same elements. Each of them supplies one contiguous part, in the order of the arena, so
// that messages are few and large.
std::vector<Run> RunFinder::Share(const std::vector<OpenRun>& open) const {
  struct Party {
    int64_t total = 0;  // bytes
    int64_t given = 0;
    size_t giver = 0;
  };
  std::vector<Party> parties(parties_.size());
  for (const OpenRun& run : open) parties[run.segment->party].total += (run.end - run.begin) * GetWidth(run.piece);
  std::vector<Run> runs;
  for (const OpenRun& run : open) {
    Party& party = parties[run.segment->party];
    const std::vector<Strip>& holders = run.segment->holders;
    int64_t width = GetWidth(run.piece);
    int64_t base = destination_.pieces()[run.piece].offset;
    int64_t count = static_cast<int64_t>(holders.size());
    for (int64_t at = run.begin; at < run.end;) {
      int64_t end = run.end;
      if (party.giver + 1 < holders.size()) {
        int64_t limit = party.total / count * static_cast<int64_t>(party.giver + 1);
        // Rounded down to an aligned byte of the arena, so that the next source's message starts there.
        int64_t border = (base + at * width + limit - party.given) / Manifest::kAlignment * Manifest::kAlignment;
        end = std::clamp((border - base) / width, at, run.end);
      }
      const Strip& giver = holders[party.giver];
      if (end > at) runs.push_back({run.piece, at, end, giver.rank, giver.origin});
      party.given += (end - at) * width;
      if (end < run.end) ++party.giver;
      at = end;
    }
  }
  return runs;
}

int64_t RunFinder::GetWidth(size_t piece) const {
  return DTypeBytes(destination_.ToDType(manifest_.tensors()[destination_.pieces()[piece].tensor]));
}

}  // namespace syncopate::synchronizer
