#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/manifest.h"
#include "model/model_config.h"

// A decoder as data: which modules it has, in which order, and what each of them is to whoever shards it, sends it, runs it or
// trains a part of it. The names of parameters come from it, and what TensorSpec says of them.
namespace syncopate::model {

// How the ranks of a replica share out a module.
enum class ModuleRole : uint8_t {
  kReplicated,  // each rank holds all of it
  kColumn,      // by outputs: rows of the weight and elements of the bias
  kRow,         // by inputs: columns of the weight; the bias is replicated, as ranks' results are summed
  kVocabulary,  // by rows, one for each token
};

// What a module's weight holds at first.
enum class InitialWeights : uint8_t {
  kLinear,     // normal, of standard deviation 1 / sqrt(inputs)
  kEmbedding,  // normal, of ModelConfig::embedding_init_std
  kHead,       // normal, of ModelConfig::head_init_std
  kOnes,
};

struct ModuleSpec {
  std::string name = {};  // within its layer, or of all: "self_attn.q_proj", "model.embed_tokens"
  ModuleRole role = ModuleRole::kReplicated;
  std::vector<int64_t> shape = {};  // of the weight: [outputs, inputs], or [elements] of a norm
  bool bias = false;                // of `outputs` elements, 0 at first
  int64_t head =
      0;  // outputs of kColumn, or inputs of kRow, of an attention head, which stay together; 0: any may part
  // The module whose one product serves this one and the neighbours that name it, too: "self_attn.qkv_proj"; "" if none.
  // Of such neighbours all weights come first, then all biases.
  std::string joint = {};
  bool takes_adapter = false;
  InitialWeights initial = InitialWeights::kLinear;
};

enum class AttentionKind : uint8_t {
  kFull,    // to all tokens before
  kWindow,  // to LayerSpec::window tokens
};
enum class FeedForwardKind : uint8_t {
  kGated,   // SwiGLU
  kRouted,  // a router, and experts that are kGated each
};

struct LayerSpec {
  AttentionKind attention = AttentionKind::kFull;
  FeedForwardKind feed_forward = FeedForwardKind::kGated;
  int64_t window = 0;   // of kWindow: tokens that a token attends to, itself and those before it
  int64_t experts = 0;  // of kRouted, of which a token goes to experts_per_token
  int64_t experts_per_token = 0;
  bool weights_sum_to_one = false;  // of those that a token goes to
  std::vector<ModuleSpec> modules;  // in the order in which a step uses them
};

struct DecoderSpec {
  std::vector<ModuleSpec> embeddings;
  std::vector<LayerSpec> layers;
  std::vector<ModuleSpec> output;  // the last norm, and the head unless it is tied

  // Units of TensorSpec: the embeddings are unit 0, layer i is unit i + 1, the output is the last one.
  int32_t units() const { return static_cast<int32_t>(layers.size()) + 2; }
};

// The spec of a model that Validate() accepts. Pure.
DecoderSpec MakeDecoderSpec(const ModelConfig& config);

// The kinds of attention and of feed-forward that the layers have, sorted: "full", "window"; "gated", "routed".
std::vector<std::string> LayerKinds(const DecoderSpec& spec);
bool IsLayerKind(const std::string& kind);
// Of all layers, modules and their fields, in their order.
uint64_t SpecDigest(const DecoderSpec& spec);

// One parameter of a decoder: what travels, and what it holds at first.
struct ParameterSpec {
  TensorSpec tensor;
  double initial_std = 0;  // of normal numbers; 0: zeros; kInitialOnes: ones
};
inline constexpr double kInitialOnes = -1;

// Every parameter, in the order of modules: that of the wire and of memory.
std::vector<ParameterSpec> ParametersOf(const DecoderSpec& spec, const ModelConfig& config, DType dtype);

}  // namespace syncopate::model
