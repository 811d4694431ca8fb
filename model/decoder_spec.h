#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/manifest.h"
#include "model/model_config.h"

// A decoder as data: its modules in order, with what sharding, sending, running and training must know about each. The
// names of parameters and the fields of TensorSpec are derived from it.
namespace syncopate::model {

// How a module is divided among the ranks of a replica.
enum class ModuleRole : uint8_t {
  kReplicated,  // each rank has the whole module
  kColumn,      // by outputs: rows of the weight and elements of the bias
  kRow,         // by inputs: columns of the weight; the bias is replicated, because ranks' results are summed
  kVocabulary,  // by rows, one for each token
};

// The initial values of a module's weight.
enum class InitialWeights : uint8_t {
  kLinear,     // normal, of standard deviation 1 / sqrt(inputs)
  kEmbedding,  // normal, of ModelConfig::embedding_init_std
  kHead,       // normal, of ModelConfig::head_init_std
  kOnes,
};

struct ModuleSpec {
  std::string name = {};  // within its layer, or whole if in no layer: "self_attn.q_proj", "model.embed_tokens"
  ModuleRole role = ModuleRole::kReplicated;
  std::vector<int64_t> shape = {};  // shape of the weight: [outputs, inputs], or [elements] of a norm
  bool bias = false;                // has a bias of `outputs` elements, initially 0
  int64_t head =
      0;  // outputs (kColumn) or inputs (kRow) of an attention head, which all stay on the same rank; 0: no heads
  // The name of the product that computes this module and its neighbours with the same `joint`: "self_attn.qkv_proj";
  // "" if none. Of such neighbours all weights come first, then all biases.
  std::string joint = {};
  bool takes_adapter = false;
  InitialWeights initial = InitialWeights::kLinear;
};

enum class AttentionKind : uint8_t {
  kFull,    // attends to the token itself and all tokens before
  kWindow,  // attends to LayerSpec::window tokens
};
enum class FeedForwardKind : uint8_t {
  kGated,   // SwiGLU
  kRouted,  // a router and experts; each expert is kGated
};

struct LayerSpec {
  AttentionKind attention = AttentionKind::kFull;
  FeedForwardKind feed_forward = FeedForwardKind::kGated;
  int64_t window = 0;   // kWindow: tokens that a token attends to, itself and those before it
  int64_t experts = 0;  // kRouted: number of experts, of which each token uses experts_per_token
  int64_t experts_per_token = 0;
  bool weights_sum_to_one = false;  // the weights of a token's experts are scaled to the sum 1
  std::vector<ModuleSpec> modules;  // in the order in which a step uses them
};

// The adapter of one projection (LoraConfig): A [rank, inputs] and B [outputs, rank].
struct AdapterSpec {
  int32_t layer = 0;
  std::string module = {};  // whole: "model.layers.0.self_attn.q_proj"
  ModuleRole role = ModuleRole::kColumn;
  int64_t rank = 0;
  int64_t inputs = 0;
  int64_t outputs = 0;
  int64_t head = 0;  // as ModuleSpec::head
};

// The names that PEFT's files give to the two matrices of an adapter: matrix 'A' or 'B' of `module`.
std::string AdapterName(const std::string& module, char matrix);
// Whether a tensor has such a name.
bool IsAdapterName(const std::string& name);

struct DecoderSpec {
  std::vector<ModuleSpec> embeddings;
  std::vector<LayerSpec> layers;
  std::vector<ModuleSpec> output;     // the last norm, and the head unless it is tied
  std::vector<AdapterSpec> adapters;  // by layer and module

  // Units of TensorSpec: the embeddings are unit 0, layer i is unit i + 1, then come the output and, if there are any,
  // the adapters.
  int32_t output_unit() const { return static_cast<int32_t>(layers.size()) + 1; }
  int32_t units() const { return output_unit() + (adapters.empty() ? 1 : 2); }
};

// The spec of a model whose sizes Validate() accepts. Pure.
DecoderSpec MakeDecoderSpec(const ModelConfig& config);

// The kinds of attention and of feed-forward that the layers have, sorted: "full", "window"; "gated", "routed".
std::vector<std::string> LayerKinds(const DecoderSpec& spec);
bool IsLayerKind(const std::string& kind);
// A digest of all layers, modules and their fields, in order.
uint64_t SpecDigest(const DecoderSpec& spec);

// One parameter of a decoder: its TensorSpec and its initial values.
struct ParameterSpec {
  TensorSpec tensor;
  double initial_std = 0;  // standard deviation of normal numbers; 0: zeros; kInitialOnes: ones
};
inline constexpr double kInitialOnes = -1;

// The number of tensors of the base, which come before those of adapters.
size_t CountBaseTensors(const Manifest& manifest);

// Every parameter in the order of modules, which is also the order on the wire and in memory; then the adapters, of
// each layer all A before all B. So the A of projections with the same input are neighbours, and one product computes x
// A^T of all.
std::vector<ParameterSpec> GetParameters(const DecoderSpec& spec, const ModelConfig& config, DType dtype);

}  // namespace syncopate::model
