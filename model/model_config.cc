#include "model/model_config.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/philox.h"

namespace syncopate::model {
namespace {

absl::Status BadModel(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_MODEL", message);
}

// No number that can be: above it, the words of a config.json describe an attack, not a model.
constexpr int64_t kMaxExtent = 1 << 24;
constexpr int64_t kMaxLayers = 1 << 16;

constexpr double kOnes = -1;

// The std of a tensor's initial values; kOnes for norm weights, 0 for biases.
double InitialStd(const ModelConfig& config, const TensorSpec& spec) {
  if (spec.shape.size() == 1) return absl::EndsWith(spec.name, ".bias") ? 0 : kOnes;
  if (absl::StrContains(spec.name, "embed_")) return config.embedding_init_std;
  if (spec.name == "lm_head.weight") return config.head_init_std;
  // One over the root of the inputs keeps the variance of what a linear gives.
  return 1.0 / std::sqrt(static_cast<double>(spec.shape[1]));
}

}  // namespace

absl::Status ModelConfig::Validate() const {
  const std::pair<const char*, int64_t> positive[] = {{"vocab_size", vocab_size},
                                                      {"hidden_size", hidden_size},
                                                      {"intermediate_size", intermediate_size},
                                                      {"num_hidden_layers", num_hidden_layers},
                                                      {"num_attention_heads", num_attention_heads},
                                                      {"num_key_value_heads", num_key_value_heads},
                                                      {"head_dim", head_dim},
                                                      {"max_position_embeddings", max_position_embeddings}};
  for (const auto& [name, value] : positive) {
    if (value <= 0 || value > kMaxExtent) {
      return BadModel(absl::StrCat("model.", name, " is ", value, "; it must be from 1 to ", kMaxExtent));
    }
  }
  if (num_hidden_layers > kMaxLayers) {
    return BadModel(
        absl::StrCat("model.num_hidden_layers is ", num_hidden_layers, "; at most ", kMaxLayers, " can be"));
  }
  if (num_attention_heads % num_key_value_heads != 0) {
    return BadModel(absl::StrCat("model.num_attention_heads ", num_attention_heads,
                                 " is not a multiple of num_key_value_heads ", num_key_value_heads));
  }
  if (head_dim % 2 != 0) return BadModel(absl::StrCat("model.head_dim ", head_dim, " is odd; rotary needs pairs"));
  return absl::OkStatus();
}

// In the order in which a step uses them, which is that of the wire and of memory: q, k and v, and gate and up, are
// neighbours, so that each group can be one product.
std::vector<TensorSpec> ParameterSpecs(const ModelConfig& config, DType dtype) {
  std::vector<TensorSpec> specs;
  auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    specs.push_back({name, dtype, std::move(shape)});
  };
  const int64_t hidden = config.hidden_size;
  add("model.embed_tokens.weight", {config.vocab_size, hidden});
  if (config.learned_positions) add("model.embed_positions.weight", {config.max_position_embeddings, hidden});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    add(prefix + "input_layernorm.weight", {hidden});
    add(prefix + "self_attn.q_proj.weight", {config.query_size(), hidden});
    add(prefix + "self_attn.k_proj.weight", {config.key_value_size(), hidden});
    add(prefix + "self_attn.v_proj.weight", {config.key_value_size(), hidden});
    if (config.qkv_bias) {
      add(prefix + "self_attn.q_proj.bias", {config.query_size()});
      add(prefix + "self_attn.k_proj.bias", {config.key_value_size()});
      add(prefix + "self_attn.v_proj.bias", {config.key_value_size()});
    }
    if (config.qk_norm) {
      add(prefix + "self_attn.q_norm.weight", {config.head_dim});
      add(prefix + "self_attn.k_norm.weight", {config.head_dim});
    }
    add(prefix + "self_attn.o_proj.weight", {hidden, config.query_size()});
    if (config.output_bias) add(prefix + "self_attn.o_proj.bias", {hidden});
    add(prefix + "post_attention_layernorm.weight", {hidden});
    add(prefix + "mlp.gate_proj.weight", {config.intermediate_size, hidden});
    add(prefix + "mlp.up_proj.weight", {config.intermediate_size, hidden});
    if (config.mlp_bias) {
      add(prefix + "mlp.gate_proj.bias", {config.intermediate_size});
      add(prefix + "mlp.up_proj.bias", {config.intermediate_size});
    }
    add(prefix + "mlp.down_proj.weight", {hidden, config.intermediate_size});
    if (config.mlp_bias) add(prefix + "mlp.down_proj.bias", {hidden});
  }
  add("model.norm.weight", {hidden});
  if (!config.tie_word_embeddings) add("lm_head.weight", {config.vocab_size, hidden});
  return specs;
}

absl::StatusOr<Manifest> MakeManifest(const ModelConfig& config, DType dtype, int64_t bucket_bytes) {
  SYNCOPATE_RETURN_IF_ERROR(config.Validate());
  return Manifest::Create(ParameterSpecs(config, dtype), bucket_bytes);
}

namespace {

// Each number depends on its place alone, so a large tensor is made by all cores: half a billion of them take one a
// minute.
void ForRanges(int64_t count, const std::function<void(int64_t begin, int64_t end)>& fill) {
  constexpr int64_t kWorthAThread = 1 << 20;
  const int64_t parts =
      std::clamp<int64_t>(count / kWorthAThread, 1, std::max(1U, std::thread::hardware_concurrency()));
  std::vector<std::thread> others;
  for (int64_t part = 1; part < parts; ++part) {
    others.emplace_back([&fill, count, part, parts] { fill(count * part / parts, count * (part + 1) / parts); });
  }
  fill(0, count / parts);
  for (std::thread& other : others) other.join();
}

}  // namespace

void InitialiseWeights(const ModelConfig& config, const Manifest& manifest, uint64_t seed, float* arena) {
  std::fill_n(arena, manifest.arena_bytes() / sizeof(float), 0.0f);
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    InitialiseElements(config, manifest, seed, i, 0, manifest.tensors()[i].NumElements(),
                       arena + manifest.ranges()[i].begin / sizeof(float));
  }
}

void InitialiseElements(const ModelConfig& config, const Manifest& manifest, uint64_t seed, size_t tensor,
                        int64_t first, int64_t count, float* values) {
  const double std_dev = InitialStd(config, manifest.tensors()[tensor]);
  // A number depends on seed, tensor and place alone: ranks make only their shards and have the same model.
  const uint64_t key = HashCombine(seed, tensor);
  ForRanges(count, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto element = static_cast<uint64_t>(first + i);
      values[i] = std_dev == kOnes ? 1.0f : static_cast<float>(std_dev * PhiloxNormal(key, element));
    }
  });
}

}  // namespace syncopate::model
