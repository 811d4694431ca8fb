#include "synchronizer/plan/needs.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/reasons.h"
#include "base/status.h"
#include "synchronizer/plan/runs.h"

namespace syncopate::synchronizer {
namespace {

// `last` extended by `next` as one more row; nullopt if `next` is not its next row.
std::optional<PackOp> Folded(PackOp last, const PackOp& next) {
  if (last.tensor != next.tensor || last.row_elements != next.row_elements || next.rows != 1) return std::nullopt;
  int64_t source_step = next.source_offset - last.source_offset - (last.rows - 1) * last.source_stride;
  int64_t send_step = next.send_offset - last.send_offset - (last.rows - 1) * last.send_stride;
  if (source_step <= 0 || send_step <= 0) return std::nullopt;
  if (last.rows > 1 && (source_step != last.source_stride || send_step != last.send_stride)) return std::nullopt;
  last.source_stride = source_step;
  last.send_stride = send_step;
  ++last.rows;
  return last;
}

// Finds the needs of one destination rank from each source.
class NeedBuilder {
 public:
  NeedBuilder(const Manifest& manifest, const Layout& source, const Layout& destination)
      : manifest_(manifest), source_(source), destination_(destination), finder_(manifest, source, destination) {}

  // Indexed by source: the needs of the destination rank whose pieces are [first, last).
  absl::StatusOr<std::vector<Need>> Build(size_t first, size_t last) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::vector<Run> runs, finder_.Fill(first, last));
    needs_.assign(source_.ranks(), Need());
    last_source_ = -1;
    for (const Run& run : runs) {
      SYNCOPATE_RETURN_IF_ERROR(CheckDType(run));
      int64_t end = ArenaByte(run.piece, run.end);
      // The message includes the padding behind a run.
      Extend(run.source, ArenaByte(run.piece, run.begin), std::min(AlignUp(end), BorderAfter(run, last)));
      Pack(run);
    }
    return std::move(needs_);
  }

 private:
  int64_t ArenaByte(size_t piece, int64_t dense) const {
    return destination_.pieces()[piece].offset + dense * DTypeBytes(GetSpec(piece).dtype);
  }
  const TensorSpec& GetSpec(size_t piece) const { return manifest_.tensors()[destination_.pieces()[piece].tensor]; }

  absl::Status CheckDType(const Run& run) const {
    const TensorSpec& spec = GetSpec(run.piece);
    DType stored = source_.ToDType(spec);
    if (stored == spec.dtype || stored == DType::kFloat32) return absl::OkStatus();
    return Error(absl::StatusCode::kFailedPrecondition, reason::kDtypeMismatch,
                 absl::StrFormat("%s travels as %s but the shards are %s; shard in fp32 or make the model's dtype bf16",
                                 spec.name, DTypeName(spec.dtype), DTypeName(stored)));
  }

  // Where the arena's next piece begins, even if that piece is not moved; the end of `run` if it ends inside its piece.
  int64_t BorderAfter(const Run& run, size_t last) const {
    const Piece& piece = destination_.pieces()[run.piece];
    if (run.end < piece.elements()) return ArenaByte(run.piece, run.end);
    if (run.piece + 1 < last) return destination_.pieces()[run.piece + 1].offset;
    return destination_.arena_bytes(piece.rank);
  }

  // Appends [begin, end) to the last message if it follows directly, padding included; otherwise begins a new message.
  void Extend(int32_t source, int64_t begin, int64_t end) {
    std::vector<Message>& messages = needs_[source].messages;
    if (source == last_source_ && messages.back().destination_offset + messages.back().bytes == begin) {
      messages.back().bytes = end - messages.back().destination_offset;
    } else {
      messages.push_back({begin, end - begin});
    }
    last_source_ = source;
  }

  // A run over several rows takes at most three operations: the rest of a row, whole rows, the beginning of a row.
  void Pack(const Run& run) {
    const Piece& piece = destination_.pieces()[run.piece];
    int64_t width = piece.row_elements();
    if (piece.rows == 1 || piece.stride == width) return PackRows(run, run.begin, 1, run.end - run.begin);
    int64_t at = run.begin;
    if (at % width != 0) {
      int64_t rest = std::min(run.end - at, width - at % width);
      PackRows(run, at, 1, rest);
      at += rest;
    }
    if (int64_t rows = (run.end - at) / width; rows > 0) {
      PackRows(run, at, rows, width);
      at += rows * width;
    }
    if (at < run.end) PackRows(run, at, 1, run.end - at);
  }

  void PackRows(const Run& run, int64_t dense, int64_t rows, int64_t row_elements) {
    const Piece& piece = destination_.pieces()[run.piece];
    const TensorSpec& spec = GetSpec(run.piece);
    int64_t element = piece.begin + dense / piece.row_elements() * piece.stride + dense % piece.row_elements();
    PackOp op;
    op.tensor = piece.tensor;
    op.from = source_.ToDType(spec);
    op.to = spec.dtype;
    op.source_offset = run.source_origin + element * DTypeBytes(op.from);
    op.send_offset = ArenaByte(run.piece, dense);
    op.rows = rows;
    op.row_elements = row_elements;
    if (rows > 1) {
      op.source_stride = piece.stride * DTypeBytes(op.from);
      op.send_stride = row_elements * DTypeBytes(op.to);
    }
    Append(needs_[run.source], op);
  }

  // Rows from a source that is itself split by columns come one by one; folds them into one operation.
  static void Append(Need& need, const PackOp& op) {
    const size_t message = need.messages.size() - 1;
    std::optional<PackOp> folded;
    if (!need.ops.empty() && need.ops.back().message == message) folded = Folded(need.ops.back().op, op);
    if (folded) {
      need.ops.back().op = *folded;
    } else {
      need.ops.push_back({op, message});
    }
  }

  const Manifest& manifest_;
  const Layout& source_;
  const Layout& destination_;
  const RunFinder finder_;
  std::vector<Need> needs_;
  int32_t last_source_ = -1;
};

}  // namespace

absl::StatusOr<std::vector<std::vector<Need>>> FindNeeds(const Manifest& manifest, const Layout& source,
                                                         const Layout& destination) {
  NeedBuilder builder(manifest, source, destination);
  std::vector<std::vector<Need>> needs;
  const std::vector<Piece>& pieces = destination.pieces();
  size_t first = 0;
  for (int32_t rank = 0; rank < destination.ranks(); ++rank) {
    size_t last = first;
    while (last < pieces.size() && pieces[last].rank == rank) ++last;
    SYNCOPATE_ASSIGN_OR_RETURN(std::vector<Need> need, builder.Build(first, last));
    needs.push_back(std::move(need));
    first = last;
  }
  return needs;
}

}  // namespace syncopate::synchronizer
