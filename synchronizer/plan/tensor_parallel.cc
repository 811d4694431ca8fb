#include "synchronizer/plan/tensor_parallel.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace syncopate::synchronizer {
namespace {

// One rank's part of a tensor. All ranks have the same shape; the piece may cover less than the shape (padding).
struct Slice {
  std::vector<int64_t> shape;
  Piece piece;  // rank, tensor, begin, end, rows, stride; empty if begin == end
};

// A local tensor and the model's tensors whose slices form it, in order.
struct Local {
  std::string name;
  std::vector<int32_t> parts;
};

class Builder {
 public:
  Builder(const Manifest& manifest, const TensorParallelOptions& options) : manifest_(manifest), options_(options) {}

  absl::StatusOr<TensorParallelLayout> Build() {
    const int32_t ranks = options_.ranks;
    if (ranks != 1 && ranks != 2 && ranks != 4 && ranks != 8) {
      return BadLayout(absl::StrFormat("tensor parallelism over %d ranks; give 1, 2, 4 or 8", ranks));
    }
    for (const Local& local : FindLocals()) SYNCOPATE_RETURN_IF_ERROR(Add(local));
    SYNCOPATE_ASSIGN_OR_RETURN(Layout layout,
                               Layout::Create(manifest_, options_.ranks, std::move(pieces_), std::nullopt, end_));
    return TensorParallelLayout{std::move(layout), std::move(tensors_)};
  }

 private:
  std::vector<Local> FindLocals() const {
    std::vector<Local> locals;
    std::map<std::string, size_t> known;
    for (size_t i = 0; i < manifest_.tensors().size(); ++i) {
      const TensorSpec& spec = manifest_.tensors()[i];
      const std::string& name = options_.fused && !spec.joint.empty() ? spec.joint : spec.name;
      const auto [found, fresh] = known.emplace(name, locals.size());
      if (fresh) locals.push_back({name, {}});
      locals[found->second].parts.push_back(static_cast<int32_t>(i));
    }
    return locals;
  }

  absl::Status Add(const Local& made_of) {
    const bool adapter = manifest_.tensors()[made_of.parts.front()].adapter;
    if (adapter && !std::exchange(has_adapters_, true)) {
      end_ = Manifest::AlignAdapters(end_, manifest_.bucket_bytes());
    }
    const int64_t begin = end_;
    std::optional<TensorSpec> local;
    for (int32_t tensor : made_of.parts) {
      const TensorSpec& spec = manifest_.tensors()[tensor];
      TensorSpec part{.name = made_of.name, .dtype = spec.dtype, .unit = spec.unit, .adapter = spec.adapter};
      for (int32_t rank = 0; rank < options_.ranks; ++rank) {
        SYNCOPATE_ASSIGN_OR_RETURN(Slice slice, Cut(spec, rank));
        slice.piece.tensor = tensor;
        slice.piece.rank = rank;
        slice.piece.offset = end_;
        if (slice.piece.begin < slice.piece.end) pieces_.push_back(slice.piece);
        part.shape = std::move(slice.shape);
      }
      part.spare_rows = spec.spare_rows;
      end_ += part.NumBytes() + part.SpareBytes();
      if (local) {
        SYNCOPATE_ASSIGN_OR_RETURN(local, Stack(*local, part, spec.name));
      } else {
        local = std::move(part);
      }
    }
    end_ = AlignUp(end_);
    tensors_.push_back({*std::move(local), begin});
    return absl::OkStatus();
  }

  // Appends the rows of `below` to those of `above`.
  static absl::StatusOr<TensorSpec> Stack(TensorSpec above, const TensorSpec& below, const std::string& name) {
    bool fits = above.dtype == below.dtype && !above.shape.empty() && above.shape.size() == below.shape.size() &&
                std::equal(above.shape.begin() + 1, above.shape.end(), below.shape.begin() + 1);
    if (!fits) return BadLayout(name + " cannot be fused: its dtype or rows differ from its neighbours'");
    if (above.spare_rows > 0) return BadLayout(name + " cannot be fused: its neighbour leaves rows free between them");
    above.shape[0] += below.shape[0];
    above.spare_rows = below.spare_rows;
    return above;
  }

  absl::StatusOr<Slice> Cut(const TensorSpec& spec, int32_t rank) const {
    const bool is_whole = spec.split == Split::kAll || (spec.split == Split::kVocabulary && options_.whole_vocabulary);
    if (options_.ranks == 1 || is_whole) {
      return Slice{spec.shape, {rank, 0, 0, spec.NumElements(), 0}};
    }
    if (spec.shape.empty()) return BadLayout(spec.name + " is a scalar and cannot be shared out");
    if (spec.NumElements() == 0) return BadLayout(spec.name + " is empty and cannot be shared out");
    switch (spec.split) {
      case Split::kVocabulary:
        return CutVocabulary(spec, rank);
      case Split::kRows:
        return CutRows(spec, rank);
      default:
        return CutColumns(spec, rank);
    }
  }

  Slice CutVocabulary(const TensorSpec& spec, int32_t rank) const {
    int64_t rows = (spec.shape[0] + options_.ranks - 1) / options_.ranks;
    int64_t first = std::min(rank * rows, spec.shape[0]);
    Slice slice = Rows(spec, first, std::min(rows, spec.shape[0] - first));
    slice.shape[0] = rows;
    return slice;
  }

  absl::StatusOr<Slice> CutRows(const TensorSpec& spec, int32_t rank) const {
    const int64_t heads = spec.head > 0 ? spec.shape[0] / spec.head : 0;
    // If there are fewer key and value heads than ranks, several ranks store the same head.
    const bool repeated =
        heads > 0 && heads < options_.ranks && options_.ranks % heads == 0 && spec.shape[0] % spec.head == 0;
    if (repeated) return Rows(spec, rank * heads / options_.ranks * spec.head, spec.head);
    SYNCOPATE_RETURN_IF_ERROR(CheckDivides(spec, spec.shape[0]));
    const int64_t rows = spec.shape[0] / options_.ranks;
    return Rows(spec, rank * rows, rows);
  }

  absl::StatusOr<Slice> CutColumns(const TensorSpec& spec, int32_t rank) const {
    if (spec.shape.size() != 2) return BadLayout(spec.name + " is no matrix and has no columns to share out");
    SYNCOPATE_RETURN_IF_ERROR(CheckDivides(spec, spec.shape[1]));
    const int64_t columns = spec.shape[1] / options_.ranks;
    Piece piece{rank, 0, rank * columns, (rank + 1) * columns, 0, spec.shape[0], spec.shape[1]};
    return Slice{{spec.shape[0], columns}, piece};
  }

  Slice Rows(const TensorSpec& spec, int64_t first, int64_t rows) const {
    int64_t width = spec.NumElements() / spec.shape[0];
    Slice slice{spec.shape, {0, 0, first * width, (first + rows) * width, 0}};
    slice.shape[0] = rows;
    return slice;
  }

  // OK if each rank gets the same number of whole heads; `extent` is the number of rows or columns.
  absl::Status CheckDivides(const TensorSpec& spec, int64_t extent) const {
    if (extent % (std::max<int64_t>(spec.head, 1) * options_.ranks) == 0) return absl::OkStatus();
    const std::string what = spec.head == 0 ? absl::StrFormat("%d rows or columns", extent)
                                            : absl::StrFormat("%d elements in heads of %d", extent, spec.head);
    return BadLayout(absl::StrFormat("%s: %s cannot be shared out evenly among %d ranks; use fewer ranks a replica",
                                     spec.name, what, options_.ranks));
  }

  const Manifest& manifest_;
  const TensorParallelOptions options_;
  std::vector<Piece> pieces_;
  std::vector<LocalTensor> tensors_;
  int64_t end_ = 0;  // the end of the arena built so far
  bool has_adapters_ = false;
};

}  // namespace

absl::StatusOr<TensorParallelLayout> MakeTensorParallel(const Manifest& manifest,
                                                        const TensorParallelOptions& options) {
  return Builder(manifest, options).Build();
}

}  // namespace syncopate::synchronizer
