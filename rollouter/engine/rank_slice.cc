#include "rollouter/engine/rank_slice.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "model/decoder_spec.h"
#include "synchronizer/plan/tensor_parallel.h"

namespace syncopate::rollouter {
namespace {

constexpr int32_t kSizes[] = {1, 2, 4, 8};

// Whether `ranks` divides the module by the rules of synchronizer/plan/tensor_parallel.h: heads stay whole, and if
// there are fewer key/value heads than ranks, several ranks store the same head.
bool Divides(const model::ModuleSpec& module, int32_t ranks) {
  switch (module.role) {
    case model::ModuleRole::kColumn: {
      const int64_t heads = module.shape[0] / std::max<int64_t>(module.head, 1);
      return heads % ranks == 0 || (module.head > 0 && ranks % heads == 0);
    }
    case model::ModuleRole::kRow:
      return module.shape[1] % (std::max<int64_t>(module.head, 1) * ranks) == 0;
    case model::ModuleRole::kReplicated:
    case model::ModuleRole::kVocabulary:  // not cut
      break;
  }
  return true;
}

bool Divides(const model::DecoderSpec& spec, int32_t ranks) {
  return std::all_of(spec.layers.begin(), spec.layers.end(), [ranks](const model::LayerSpec& layer) {
    return std::all_of(layer.modules.begin(), layer.modules.end(),
                       [ranks](const model::ModuleSpec& module) { return Divides(module, ranks); });
  });
}

synchronizer::TensorParallelOptions PlanOptions(int32_t ranks) {
  return {.ranks = ranks, .fused = true, .whole_vocabulary = true};
}

}  // namespace

absl::Status CheckTensorParallel(const model::ModelConfig& config, int32_t ranks) {
  const model::DecoderSpec spec = model::MakeDecoderSpec(config);
  std::vector<int32_t> sizes;
  for (int32_t size : kSizes) {
    if (Divides(spec, size)) sizes.push_back(size);
  }
  if (std::find(sizes.begin(), sizes.end(), ranks) != sizes.end()) return absl::OkStatus();
  return Error(
      absl::StatusCode::kInvalidArgument, "BAD_CONFIG",
      absl::StrCat("rollout.tensor_parallel is ", ranks, ", which cannot share out ", config.num_attention_heads,
                   " query heads, ", config.num_key_value_heads, " key/value heads and a feed-forward of ",
                   config.num_experts > 0 ? config.moe_intermediate_size : config.intermediate_size,
                   "; for this model it may be ", absl::StrJoin(sizes, ", ")));
}

std::string TensorParallelLayout(int32_t ranks) { return ranks == 1 ? "" : absl::StrCat("tp:", ranks, ":fused:vocab"); }

absl::StatusOr<RankSlice> MakeRankSlice(const model::ModelConfig& config, const Manifest& whole, int32_t ranks) {
  SYNCOPATE_RETURN_IF_ERROR(CheckTensorParallel(config, ranks));
  SYNCOPATE_ASSIGN_OR_RETURN(synchronizer::TensorParallelLayout made,
                             synchronizer::MakeTensorParallel(whole, PlanOptions(ranks)));
  std::vector<TensorSpec> specs;
  for (const synchronizer::LocalTensor& tensor : made.tensors) specs.push_back(tensor.spec);
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest manifest, Manifest::Create(std::move(specs), whole.bucket_bytes()));
  // Both begin each tensor on a boundary of kAlignment, so the offsets must be equal.
  for (size_t i = 0; i < made.tensors.size(); ++i) {
    SYNCOPATE_CHECK(manifest.ranges()[i].begin == made.tensors[i].offset);
  }
  SYNCOPATE_CHECK(manifest.arena_bytes() == made.layout.arena_bytes(0));
  RankSlice slice{config, std::move(manifest), std::move(made.layout)};
  slice.config.num_attention_heads /= ranks;
  slice.config.num_key_value_heads = std::max<int64_t>(1, config.num_key_value_heads / ranks);
  slice.config.intermediate_size /= ranks;
  slice.config.moe_intermediate_size /= ranks;
  return slice;
}

void CopyRankSlice(const Manifest& whole, const RankSlice& slice, int32_t rank, const char* from, char* to) {
  std::memset(to, 0, static_cast<size_t>(slice.manifest.arena_bytes()));
  for (const synchronizer::Piece& piece : slice.layout.pieces()) {
    if (piece.rank != rank) continue;
    const int64_t element = DTypeBytes(whole.tensors()[piece.tensor].dtype);
    const char* const tensor = from + whole.ranges()[piece.tensor].begin;
    const int64_t row = piece.row_elements() * element;
    for (int64_t r = 0; r < piece.rows; ++r) {
      std::memcpy(to + piece.offset + r * row, tensor + (piece.begin + r * piece.stride) * element,
                  static_cast<size_t>(row));
    }
  }
}

}  // namespace syncopate::rollouter
