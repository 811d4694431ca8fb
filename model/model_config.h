#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/manifest.h"
#include "base/status.h"

namespace syncopate::model {

// How rotary angles are changed so that a model reaches beyond the context it was trained with; the formulas are in
// model/rope.cc.
struct RopeScaling {
  enum class Type : uint8_t { kDefault, kLinear, kLlama3, kYarn };
  Type type = Type::kDefault;
  double factor = 1;
  double original_context = 0;  // of the first training, in tokens: kLlama3, kYarn
  double low_freq_factor = 1;   // kLlama3
  double high_freq_factor = 4;  // kLlama3
  double beta_fast = 32;        // kYarn
  double beta_slow = 1;         // kYarn
  bool truncate = true;         // kYarn
  double attention_factor = 1;  // of every cosine and sine: kYarn

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

// The shape of one decoder-only transformer of the Llama family, in the words of a Hugging Face config.json: RMSNorm,
// rotary positions, grouped-query attention with optional biases and per-head q/k norm, SwiGLU or routed experts that are
// SwiGLU each, tied or untied embeddings.
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
  // A learned table added to the token embeddings. Small models trained from nothing need it to learn positional tasks;
  // imported models do not have it.
  bool learned_positions = false;
  bool tie_word_embeddings = false;
  // Tokens that each layer attends to, a token itself and those before it; 0: all of them. Empty: all of them in every layer.
  std::vector<int64_t> layer_windows = {};
  // Routed experts (arXiv 1701.06538): each token of a routed layer goes to num_experts_per_tok of num_experts, which are
  // weighted by the softmax of the router in float32, over all experts; norm_topk_prob makes the chosen weights sum to 1. All
  // layers are routed but dense_layers, which have one feed-forward of intermediate_size. num_experts 0: no layer is routed.
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;  // of one expert
  bool norm_topk_prob = false;
  std::vector<int64_t> dense_layers = {};  // ascending
  // Standard deviations of the random initialisation; matrices inside the layers get 1/sqrt(fan in), norms are 1,
  // biases 0.
  double embedding_init_std = 0.08;  // token and position tables
  double head_init_std = 0.02;

  // INVALID_ARGUMENT (reason BAD_MODEL) naming the field that cannot be.
  absl::Status Validate() const;

  // Of one layer; 0: it attends to all tokens.
  int64_t window(int64_t layer) const { return layer_windows.empty() ? 0 : layer_windows[static_cast<size_t>(layer)]; }
  bool has_windows() const;
  bool is_routed(int64_t layer) const;
  // Columns that a token passes in the feed-forward of that layer: those of all experts that it goes to.
  int64_t feed_forward_size(int64_t layer) const {
    return is_routed(layer) ? num_experts_per_tok * moe_intermediate_size : intermediate_size;
  }
  int64_t query_size() const { return num_attention_heads * head_dim; }
  int64_t key_value_size() const { return num_key_value_heads * head_dim; }
};

// OK if `device` ("cpu" or "cuda:N") computes the layers of `config`. FAILED_PRECONDITION naming the layer: a layer with a window
// (reason WINDOW_ON_GPU) or with routed experts (EXPERTS_ON_GPU) runs on the CPU alone.
absl::Status CheckLayerKinds(const ModelConfig& config, const std::string& device);

// Every parameter in wire order, named as Hugging Face names it: those of the model's spec (model/decoder_spec.h). q, k and v of
// a layer are neighbours, gate and up too, so that one matrix product serves each set where no gap of alignment falls between
// them (as in all published models). With tied embeddings there is no lm_head.weight.
std::vector<TensorSpec> ParameterSpecs(const ModelConfig& config, DType dtype);

// The manifest of those parameters. Errors: those of Validate() and Manifest::Create().
absl::StatusOr<Manifest> MakeManifest(const ModelConfig& config, DType dtype,
                                      int64_t bucket_bytes = Manifest::kDefaultBucketBytes);

// Writes the initial weights into an arena of manifest.arena_bytes() bytes of float32: a pure function of seed and
// config (Philox, one stream per tensor), the same on every machine; gaps become zero.
void InitialiseWeights(const ModelConfig& config, const Manifest& manifest, uint64_t seed, float* arena);
// Of the same weights elements [first, first + count) of one tensor, by its place in the manifest.
void InitialiseElements(const ModelConfig& config, uint64_t seed, size_t tensor, int64_t first, int64_t count,
                        float* values);

}  // namespace syncopate::model
