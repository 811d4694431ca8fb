#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/manifest.h"
#include "base/status.h"

namespace syncopate::model {

// How rotary angles are changed so that a model supports more than the context it was trained with; the formulas are in
// model/rope.cc.
struct RopeScaling {
  enum class Type : uint8_t { kDefault, kLinear, kLlama3, kYarn };
  Type type = Type::kDefault;
  double factor = 1;
  double original_context = 0;  // context of the first training, in tokens: kLlama3, kYarn
  double low_freq_factor = 1;   // kLlama3
  double high_freq_factor = 4;  // kLlama3
  double beta_fast = 32;        // kYarn
  double beta_slow = 1;         // kYarn
  bool truncate = true;         // kYarn
  double attention_factor = 1;  // multiplies every cosine and sine: kYarn

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

// Low-rank adapters (LoRA, arXiv 2106.09685) on projections of the layers: y = x W^T + scale * (x A^T) B^T, with A
// [rank, inputs] and B [outputs, rank]. Only A and B are trained; all other weights are the base.
struct LoraConfig {
  // The projections that can carry an adapter, in the order in which `projections` names them.
  static const std::vector<std::string>& AllProjections();

  int64_t rank = 0;  // 0: no adapters
  double alpha = 0;
  bool rank_stabilised = false;               // the scale is alpha / sqrt(rank) (arXiv 2312.03732), else alpha / rank
  std::vector<std::string> projections = {};  // "q_proj", ...: they have an adapter in each layer that has them

  bool enabled() const { return rank > 0; }
  double scale() const;
  friend bool operator==(const LoraConfig&, const LoraConfig&) = default;
};

// The shape of one decoder-only transformer of the Llama family, with the names of a Hugging Face config.json: RMSNorm,
// rotary positions, grouped-query attention with optional biases and per-head q/k norm, SwiGLU or routed SwiGLU
// experts, tied or untied embeddings.
struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 64;
  int64_t intermediate_size = 192;
  int64_t num_hidden_layers = 2;
  int64_t num_attention_heads = 4;
  int64_t num_key_value_heads = 4;
  int64_t head_dim = 16;
  int64_t max_position_embeddings = 16;  // also the longest sequence
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  double rms_norm_eps = 1e-6;
  bool qk_norm = true;
  bool qkv_bias = false;     // q_proj, k_proj, v_proj
  bool output_bias = false;  // o_proj
  bool mlp_bias = false;     // gate_proj, up_proj, down_proj
  // Adds a learned position table to the token embeddings. Small models trained from scratch need it to learn
  // positional tasks; imported models do not have it.
  bool learned_positions = false;
  bool tie_word_embeddings = false;
  // For each layer, the tokens that a token attends to: itself and those before it; 0: all. Empty: all in every layer.
  std::vector<int64_t> layer_windows = {};
  // Routed experts (arXiv 1701.06538): in a routed layer each token goes to num_experts_per_tok of num_experts. Their
  // weights are the router's softmax over all experts, in float32; norm_topk_prob scales the chosen weights to the sum
  // 1. All layers are routed except dense_layers, which have one feed-forward of intermediate_size. num_experts 0: no
  // layer is routed.
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;  // size of one expert
  bool norm_topk_prob = false;
  std::vector<int64_t> dense_layers = {};  // ascending
  // Standard deviations of the random initialisation; matrices inside the layers get 1/sqrt(fan in), norms are 1,
  // biases 0.
  double embedding_init_std = 0.08;  // token and position tables
  double head_init_std = 0.02;
  LoraConfig lora = {};

  // INVALID_ARGUMENT (reason BAD_MODEL) naming an impossible field.
  absl::Status Validate() const;

  // The same model without adapters.
  ModelConfig Base() const;
  // The window of one layer; 0: the layer attends to all tokens.
  int64_t window(int64_t layer) const { return layer_windows.empty() ? 0 : layer_windows[static_cast<size_t>(layer)]; }
  bool has_windows() const;
  bool is_routed(int64_t layer) const;
  // Intermediate columns for one token in the feed-forward of that layer; in a routed layer, those of all its experts.
  int64_t feed_forward_size(int64_t layer) const {
    return is_routed(layer) ? num_experts_per_tok * moe_intermediate_size : intermediate_size;
  }
  int64_t query_size() const { return num_attention_heads * head_dim; }
  int64_t key_value_size() const { return num_key_value_heads * head_dim; }
};

// The largest rank of adapters on a GPU: decoding reads A and B of every projection in each step.
inline constexpr int64_t kMaxGpuAdapterRank = 256;

// OK if `device` ("cpu" or "cuda:N") supports the layers of `config`. FAILED_PRECONDITION naming the layer: a layer
// with a window (reason WINDOW_ON_GPU) or with routed experts (EXPERTS_ON_GPU) runs only on the CPU. On a GPU the rank
// of adapters is a multiple of 8 and at most kMaxGpuAdapterRank (LORA_RANK_ON_GPU).
absl::Status CheckLayerKinds(const ModelConfig& config, const std::string& device);

// Every parameter of the model's spec (model/decoder_spec.h) in wire order, with its Hugging Face name; adapters are
// last, with the names of PEFT's files. q, k and v of a layer are neighbours, and so are gate and up, so that one
// matrix product computes each set if no alignment gap is between them (as in all published models). With tied
// embeddings there is no lm_head.weight.
std::vector<TensorSpec> ParameterSpecs(const ModelConfig& config, DType dtype);

// The manifest of those parameters. Errors: those of Validate() and Manifest::Create().
absl::StatusOr<Manifest> MakeManifest(const ModelConfig& config, DType dtype,
                                      int64_t bucket_bytes = Manifest::kDefaultBucketBytes);

// MakeManifest() with what rollouters and weight syncs must know of adapters: TensorSpec::adapter, and in bfloat16 spare rows
// behind the projections of one product for the A of kAdapterPlaces adapter sets, which a GPU's decoder multiplies together
// with them.
absl::StatusOr<Manifest> MakeWireManifest(const ModelConfig& config, DType dtype,
                                          int64_t bucket_bytes = Manifest::kDefaultBucketBytes);
// The number of adapter sets of a rollouter: one that is live, one that receives, and one that evaluations have pinned.
inline constexpr int32_t kAdapterSets = 3;
// The number of adapter sets that compute in one step: the live one, and a pinned one.
inline constexpr int32_t kAdapterPlaces = 2;

// Writes the initial weights into an arena of manifest.arena_bytes() bytes of float32: a pure function of seed and
// config (Philox, one stream per tensor), the same on every machine; gaps become zero.
void InitialiseWeights(const ModelConfig& config, const Manifest& manifest, uint64_t seed, float* arena);
// Writes elements [first, first + count) of one tensor of these initial weights; `tensor` is its index in the manifest.
void InitialiseElements(const ModelConfig& config, uint64_t seed, size_t tensor, int64_t first, int64_t count,
                        float* values);

}  // namespace syncopate::model
