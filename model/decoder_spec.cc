#include "model/decoder_spec.h"

#include <cmath>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/digest.h"

namespace syncopate::model {
namespace {

ModuleSpec Norm(std::string name, int64_t elements) {
  return {.name = std::move(name), .shape = {elements}, .initial = InitialWeights::kOnes};
}

void AddAttention(const ModelConfig& config, LayerSpec* layer) {
  const int64_t hidden = config.hidden_size;
  auto project = [&](const char* name, int64_t outputs) {
    layer->modules.push_back({.name = name,
                              .role = ModuleRole::kColumn,
                              .shape = {outputs, hidden},
                              .bias = config.qkv_bias,
                              .head = config.head_dim,
                              .joint = "self_attn.qkv_proj",
                              .takes_adapter = true});
  };
  project("self_attn.q_proj", config.query_size());
  project("self_attn.k_proj", config.key_value_size());
  project("self_attn.v_proj", config.key_value_size());
  if (config.qk_norm) {
    layer->modules.push_back(Norm("self_attn.q_norm", config.head_dim));
    layer->modules.push_back(Norm("self_attn.k_norm", config.head_dim));
  }
  layer->modules.push_back({.name = "self_attn.o_proj",
                            .role = ModuleRole::kRow,
                            .shape = {hidden, config.query_size()},
                            .bias = config.output_bias,
                            .head = config.head_dim,
                            .takes_adapter = true});
}

// `name`: "mlp", or the name of an expert. The feed-forward of a dense layer takes an adapter, experts do not.
void AddGated(const ModelConfig& config, const std::string& name, int64_t inner, bool takes_adapter, LayerSpec* layer) {
  for (const char* projection : {".gate_proj", ".up_proj"}) {
    layer->modules.push_back({.name = name + projection,
                              .role = ModuleRole::kColumn,
                              .shape = {inner, config.hidden_size},
                              .bias = config.mlp_bias,
                              .joint = name + ".gate_up_proj",
                              .takes_adapter = takes_adapter});
  }
  layer->modules.push_back({.name = name + ".down_proj",
                            .role = ModuleRole::kRow,
                            .shape = {config.hidden_size, inner},
                            .bias = config.mlp_bias,
                            .takes_adapter = takes_adapter});
}

void AddFeedForward(const ModelConfig& config, bool routed, LayerSpec* layer) {
  if (!routed) {
    AddGated(config, "mlp", config.intermediate_size, /*takes_adapter=*/true, layer);
    return;
  }
  layer->feed_forward = FeedForwardKind::kRouted;
  layer->experts = config.num_experts;
  layer->experts_per_token = config.num_experts_per_tok;
  layer->weights_sum_to_one = config.norm_topk_prob;
  layer->modules.push_back({.name = "mlp.gate", .shape = {config.num_experts, config.hidden_size}});
  for (int64_t expert = 0; expert < config.num_experts; ++expert) {
    AddGated(config, absl::StrCat("mlp.experts.", expert), config.moe_intermediate_size, /*takes_adapter=*/false,
             layer);
  }
}

double InitialStd(const ModuleSpec& module, const ModelConfig& config) {
  switch (module.initial) {
    case InitialWeights::kOnes:
      return kInitialOnes;
    case InitialWeights::kEmbedding:
      return config.embedding_init_std;
    case InitialWeights::kHead:
      return config.head_init_std;
    case InitialWeights::kLinear:
      break;
  }
  // 1 / sqrt(inputs) keeps the variance of a linear's output equal to that of its input.
  return 1.0 / std::sqrt(static_cast<double>(module.shape[1]));
}

Split GetSplit(const ModuleSpec& module, bool of_bias) {
  switch (module.role) {
    case ModuleRole::kColumn:
      return Split::kRows;
    case ModuleRole::kRow:
      return of_bias ? Split::kAll : Split::kColumns;
    case ModuleRole::kVocabulary:
      return Split::kVocabulary;
    case ModuleRole::kReplicated:
      break;
  }
  return Split::kAll;
}

// Adapters of the projections of one layer that `config` names.
void AddAdapters(const ModelConfig& config, const LayerSpec& layer, int32_t index, std::vector<AdapterSpec>* adapters) {
  const std::string prefix = absl::StrCat("model.layers.", index, ".");
  for (const ModuleSpec& module : layer.modules) {
    const std::string projection = module.name.substr(module.name.rfind('.') + 1);
    if (!module.takes_adapter || !absl::c_linear_search(config.lora.projections, projection)) continue;
    adapters->push_back({.layer = index,
                         .module = prefix + module.name,
                         .role = module.role,
                         .rank = config.lora.rank,
                         .inputs = module.shape[1],
                         .outputs = module.shape[0],
                         .head = module.head});
  }
}

// Collects the parameters of modules in order.
class Lister {
 public:
  Lister(const ModelConfig& config, DType dtype) : config_(config), dtype_(dtype) {}

  void Add(const std::vector<ModuleSpec>& modules, const std::string& prefix, int32_t unit) {
    for (size_t first = 0; first < modules.size();) {
      size_t last = first + 1;
      while (last < modules.size() && !modules[first].joint.empty() && modules[last].joint == modules[first].joint) {
        ++last;
      }
      for (size_t i = first; i < last; ++i) AddOne(modules[i], prefix, unit, /*is_bias=*/false);
      for (size_t i = first; i < last; ++i) {
        if (modules[i].bias) AddOne(modules[i], prefix, unit, /*is_bias=*/true);
      }
      first = last;
    }
  }

  // The side of an adapter that its projection is cut along is cut with it; the other side is as long as the rank and
  // whole everywhere. So each rank adds its part of the product to its part of the projection's.
  void Add(const std::vector<AdapterSpec>& adapters, int32_t unit) {
    for (size_t first = 0; first < adapters.size();) {
      size_t last = first;
      while (last < adapters.size() && adapters[last].layer == adapters[first].layer) ++last;
      for (char matrix : {'A', 'B'}) {
        for (size_t i = first; i < last; ++i) AddMatrix(adapters[i], matrix, unit);
      }
      first = last;
    }
  }

  std::vector<ParameterSpec> Take() { return std::move(parameters_); }

 private:
  void AddMatrix(const AdapterSpec& adapter, char matrix, int32_t unit) {
    const bool is_a = matrix == 'A', is_column = adapter.role == ModuleRole::kColumn;
    TensorSpec tensor{AdapterName(adapter.module, matrix), dtype_, {adapter.rank, adapter.inputs}, unit};
    if (!is_a) tensor.shape = {adapter.outputs, adapter.rank};
    if (is_a != is_column) {
      tensor.split = is_a ? Split::kColumns : Split::kRows;
      tensor.head = adapter.head;
    }
    // The variance of PEFT's initial A, which is uniform over +- 1 / sqrt(inputs); B is 0, so that training begins at
    // the base.
    parameters_.push_back({std::move(tensor), is_a ? 1.0 / std::sqrt(3.0 * static_cast<double>(adapter.inputs)) : 0});
  }
  void AddOne(const ModuleSpec& module, const std::string& prefix, int32_t unit, bool is_bias) {
    const char* const leaf = is_bias ? ".bias" : ".weight";
    TensorSpec tensor{absl::StrCat(prefix, module.name, leaf), dtype_, module.shape};
    if (is_bias) tensor.shape.resize(1);
    tensor.unit = unit;
    tensor.split = GetSplit(module, is_bias);
    const bool in_heads = tensor.split == Split::kRows || tensor.split == Split::kColumns;
    tensor.head = in_heads ? module.head : 0;
    if (!module.joint.empty()) tensor.joint = absl::StrCat(prefix, module.joint, leaf);
    parameters_.push_back({std::move(tensor), is_bias ? 0 : InitialStd(module, config_)});
  }

  const ModelConfig& config_;
  const DType dtype_;
  std::vector<ParameterSpec> parameters_;
};

}  // namespace

namespace {
constexpr char kAdapterPrefix[] = "base_model.model.";
}  // namespace

std::string AdapterName(const std::string& module, char matrix) {
  return absl::StrCat(kAdapterPrefix, module, ".lora_", std::string(1, matrix), ".weight");
}

bool IsAdapterName(const std::string& name) { return absl::StartsWith(name, kAdapterPrefix); }

size_t CountBaseTensors(const Manifest& manifest) {
  size_t count = 0;
  while (count < manifest.tensors().size() && !IsAdapterName(manifest.tensors()[count].name)) ++count;
  return count;
}

// q, k and v are neighbours, and so are gate and up, so that each group can be one product.
DecoderSpec MakeDecoderSpec(const ModelConfig& config) {
  DecoderSpec spec;
  const std::vector<int64_t> table = {config.vocab_size, config.hidden_size};
  spec.embeddings.push_back({.name = "model.embed_tokens",
                             .role = ModuleRole::kVocabulary,
                             .shape = table,
                             .initial = InitialWeights::kEmbedding});
  if (config.learned_positions) {
    spec.embeddings.push_back({.name = "model.embed_positions",
                               .shape = {config.max_position_embeddings, config.hidden_size},
                               .initial = InitialWeights::kEmbedding});
  }
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    LayerSpec& layer = spec.layers.emplace_back();
    layer.window = config.window(i);
    layer.attention = layer.window > 0 ? AttentionKind::kWindow : AttentionKind::kFull;
    layer.modules.push_back(Norm("input_layernorm", config.hidden_size));
    AddAttention(config, &layer);
    layer.modules.push_back(Norm("post_attention_layernorm", config.hidden_size));
    AddFeedForward(config, config.is_routed(i), &layer);
    if (config.lora.enabled()) {
      AddAdapters(config, layer, static_cast<int32_t>(i), &spec.adapters);
    }
  }
  spec.output.push_back(Norm("model.norm", config.hidden_size));
  if (!config.tie_word_embeddings) {
    spec.output.push_back(
        {.name = "lm_head", .role = ModuleRole::kVocabulary, .shape = table, .initial = InitialWeights::kHead});
  }
  return spec;
}

namespace {

const char* GetName(AttentionKind kind) { return kind == AttentionKind::kWindow ? "window" : "full"; }
const char* GetName(FeedForwardKind kind) { return kind == FeedForwardKind::kRouted ? "routed" : "gated"; }

// Appends a text that is different for any two different lists of modules.
void Describe(const std::vector<ModuleSpec>& modules, std::string* text) {
  for (const ModuleSpec& module : modules) {
    absl::StrAppend(text, module.name, "|", static_cast<int>(module.role), "|", absl::StrJoin(module.shape, ","), "|",
                    module.bias, "|", module.head, "|", module.joint, "|", module.takes_adapter, "\n");
  }
}

}  // namespace

std::vector<std::string> LayerKinds(const DecoderSpec& spec) {
  std::set<std::string> kinds;
  for (const LayerSpec& layer : spec.layers) {
    kinds.insert(GetName(layer.attention));
    kinds.insert(GetName(layer.feed_forward));
  }
  return {kinds.begin(), kinds.end()};
}

bool IsLayerKind(const std::string& kind) {
  return kind == GetName(AttentionKind::kFull) || kind == GetName(AttentionKind::kWindow) ||
         kind == GetName(FeedForwardKind::kGated) || kind == GetName(FeedForwardKind::kRouted);
}

uint64_t SpecDigest(const DecoderSpec& spec) {
  std::string text;
  Describe(spec.embeddings, &text);
  for (const LayerSpec& layer : spec.layers) {
    absl::StrAppend(&text, GetName(layer.attention), "|", layer.window, "|", GetName(layer.feed_forward), "|",
                    layer.experts, "|", layer.experts_per_token, "|", layer.weights_sum_to_one, "\n");
    Describe(layer.modules, &text);
  }
  Describe(spec.output, &text);
  for (const AdapterSpec& adapter : spec.adapters) {
    absl::StrAppend(&text, adapter.module, "|", static_cast<int>(adapter.role), "|", adapter.rank, "|", adapter.inputs,
                    "|", adapter.outputs, "|", adapter.head, "\n");
  }
  return DigestBytes(text.data(), static_cast<int64_t>(text.size()));
}

std::vector<ParameterSpec> GetParameters(const DecoderSpec& spec, const ModelConfig& config, DType dtype) {
  Lister lister(config, dtype);
  lister.Add(spec.embeddings, "", /*unit=*/0);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    lister.Add(spec.layers[i].modules, absl::StrCat("model.layers.", i, "."), static_cast<int32_t>(i) + 1);
  }
  lister.Add(spec.output, "", spec.output_unit());
  lister.Add(spec.adapters, spec.units() - 1);
  return lister.Take();
}

}  // namespace syncopate::model
