#include "bench/sync/bench_model.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::bench {
namespace {

// Sequences of a benchmark are short, and what an engine reserves for one grows with the longest.
constexpr int64_t kLongestContext = 1024;

}  // namespace

absl::StatusOr<Manifest> BenchManifest(const std::string& model) {
  SYNCOPATE_ASSIGN_OR_RETURN(const model::ModelConfig config, model::FindPreset(model));
  return model::MakeManifest(config, DType::kBFloat16, BenchBucketBytes(config));
}

absl::StatusOr<model::ModelConfig> BenchShape(const std::string& model, int32_t layers) {
  SYNCOPATE_ASSIGN_OR_RETURN(model::ModelConfig shape, model::FindPreset(model));
  if (layers > shape.num_hidden_layers) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_CASE",
                 absl::StrCat("--layers is ", layers, ", but ", model, " has ", shape.num_hidden_layers));
  }
  if (layers > 0) shape.num_hidden_layers = layers;
  shape.qkv_bias = false;
  shape.rope_scaling = {};
  shape.max_position_embeddings = std::min(shape.max_position_embeddings, kLongestContext);
  return shape;
}

int64_t BenchBucketBytes(const model::ModelConfig& shape) {
  constexpr int64_t kSmallHidden = 256, kSmallBucket = 64 << 10;
  return shape.hidden_size < kSmallHidden ? kSmallBucket : Manifest::kDefaultBucketBytes;
}

std::vector<std::string> ShapeWords(const model::ModelConfig& shape) {
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  return {absl::StrCat("model.vocab_size=", shape.vocab_size),
          absl::StrCat("model.hidden_size=", shape.hidden_size),
          absl::StrCat("model.intermediate_size=", shape.intermediate_size),
          absl::StrCat("model.num_hidden_layers=", shape.num_hidden_layers),
          absl::StrCat("model.num_attention_heads=", shape.num_attention_heads),
          absl::StrCat("model.num_key_value_heads=", shape.num_key_value_heads),
          absl::StrCat("model.head_dim=", shape.head_dim),
          absl::StrCat("model.max_position_embeddings=", shape.max_position_embeddings),
          absl::StrCat("model.rope_theta=", shape.rope_theta),
          absl::StrCat("model.rms_norm_eps=", shape.rms_norm_eps),
          absl::StrCat("model.qk_norm=", flag(shape.qk_norm)),
          absl::StrCat("model.learned_positions=", flag(shape.learned_positions)),
          absl::StrCat("model.tie_word_embeddings=", flag(shape.tie_word_embeddings)),
          "model.embedding_init_std=0.02"};
}

}  // namespace syncopate::bench
