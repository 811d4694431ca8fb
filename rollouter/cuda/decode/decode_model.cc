#include "rollouter/cuda/decode/decode_model.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/cuda/row_kernels.h"
#include "rollouter/cuda/decode/paged_attention.h"

namespace syncopate::rollouter {
namespace {

static_assert(kDecodedAdapterSets == model::kAdapterSets && kDecodedAdapterSets <= kRowSets);
static_assert(kAdapterPlaces == model::kAdapterPlaces);

absl::Status Unsupported(const std::string& what) {
  return Error(absl::StatusCode::kFailedPrecondition, "UNSUPPORTED_SHAPE",
               absl::StrCat("the decode kernels are not made for ", what));
}

}  // namespace

absl::Status DecodeShape::Validate() const {
  if (layers < 1 || vocab < 1) return Unsupported("a model without layers or tokens");
  // The kernels load vectors of 8 bf16.
  if (hidden < 8 || hidden % 8 != 0 || hidden > model::kMaxHidden) {
    return Unsupported(absl::StrCat("hidden size ", hidden, ": multiples of 8 up to ", model::kMaxHidden));
  }
  if (intermediate < 8 || intermediate % 8 != 0) {
    return Unsupported(absl::StrCat("intermediate size ", intermediate, ": multiples of 8"));
  }
  if (heads.head_dim != 64 && heads.head_dim != 128) {
    return Unsupported(absl::StrCat("head size ", heads.head_dim, ": 64 and 128"));
  }
  if (heads.kv_heads < 1 || heads.heads % heads.kv_heads != 0 || heads.heads / heads.kv_heads < 1 ||
      heads.heads / heads.kv_heads > kMaxGroup) {
    return Unsupported(
        absl::StrCat(heads.heads, " query heads over ", heads.kv_heads, " key/value heads: 1 to ", kMaxGroup, " each"));
  }
  if (adapter_rank < 0 || adapter_rank % 8 != 0 || adapter_rank > model::kMaxGpuAdapterRank) {
    return Unsupported(
        absl::StrCat("adapters of rank ", adapter_rank, ": multiples of 8 up to ", model::kMaxGpuAdapterRank));
  }
  return absl::OkStatus();
}

DecodeShape GetShape(const model::ModelConfig& config) {
  return {.layers = static_cast<int32_t>(config.num_hidden_layers),
          .hidden = static_cast<int32_t>(config.hidden_size),
          .intermediate = static_cast<int32_t>(config.intermediate_size),
          .vocab = static_cast<int32_t>(config.vocab_size),
          .heads = {static_cast<int32_t>(config.num_attention_heads), static_cast<int32_t>(config.num_key_value_heads),
                    static_cast<int32_t>(config.head_dim)},
          .norm_epsilon = static_cast<float>(config.rms_norm_eps),
          .qkv_bias = config.qkv_bias,
          .qk_norm = config.qk_norm,
          .adapter_rank = static_cast<int32_t>(config.lora.rank),
          .adapter_scale = config.lora.enabled() ? static_cast<float>(config.lora.scale()) : 1};
}

std::vector<float> RotaryTable(int32_t positions, int32_t head_dim, double theta) {
  const int32_t half = head_dim / 2;
  std::vector<float> table(static_cast<size_t>(positions) * head_dim);
  for (int32_t i = 0; i < half; ++i) {
    // Computed in float32, as Transformer does, so that the angles agree with its table.
    const float frequency =
        std::pow(static_cast<float>(theta), static_cast<float>(2 * i) / -static_cast<float>(head_dim));
    for (int32_t position = 0; position < positions; ++position) {
      const float angle = static_cast<float>(position) * frequency;
      const size_t place = 2 * (static_cast<size_t>(position) * half + i);
      table[place] = std::cos(angle);
      table[place + 1] = std::sin(angle);
    }
  }
  return table;
}

}  // namespace syncopate::rollouter
