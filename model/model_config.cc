#include "model/model_config.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/digest.h"
#include "base/philox.h"
#include "model/decoder_spec.h"

namespace syncopate::model {
namespace {

absl::Status BadModel(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_MODEL", message);
}

// Upper bounds of plausible sizes: a config.json with larger numbers is an attack, not a model.
constexpr int64_t kMaxExtent = 1 << 24;
constexpr int64_t kMaxLayers = 1 << 16;
constexpr int64_t kMaxExperts = 1 << 12;
constexpr int64_t kMaxExpertsInAll = 1 << 18;

absl::Status CheckExperts(const ModelConfig& config) {
  if (config.num_experts == 0) {
    if (config.num_experts_per_tok == 0 && config.dense_layers.empty()) return absl::OkStatus();
    return BadModel("model.num_experts is 0, so that num_experts_per_tok and dense_layers mean nothing");
  }
  if (config.num_experts < 0 || config.num_experts > kMaxExperts) {
    return BadModel(absl::StrCat("model.num_experts is ", config.num_experts, "; it must be from 0 to ", kMaxExperts));
  }
  if (config.num_experts_per_tok < 1 || config.num_experts_per_tok > config.num_experts) {
    return BadModel(absl::StrCat("model.num_experts_per_tok is ", config.num_experts_per_tok,
                                 "; it must be from 1 to num_experts ", config.num_experts));
  }
  if (config.moe_intermediate_size < 1 || config.moe_intermediate_size > kMaxExtent) {
    return BadModel(absl::StrCat("model.moe_intermediate_size is ", config.moe_intermediate_size,
                                 "; it must be from 1 to ", kMaxExtent));
  }
  if (config.num_hidden_layers * config.num_experts > kMaxExpertsInAll) {
    return BadModel(absl::StrCat("model.num_experts ", config.num_experts, " in ", config.num_hidden_layers,
                                 " layers are more than ", kMaxExpertsInAll, " experts"));
  }
  if (config.mlp_bias) return BadModel("model.mlp_bias: experts have no biases");
  int64_t last = -1;
  for (int64_t layer : config.dense_layers) {
    if (layer <= last || layer >= config.num_hidden_layers) {
      return BadModel(absl::StrCat("model.dense_layers names layer ", layer, " after ", last,
                                   "; layers ascend, from 0 to ", config.num_hidden_layers - 1));
    }
    last = layer;
  }
  return absl::OkStatus();
}

absl::Status CheckAdapters(const ModelConfig& config) {
  const LoraConfig& lora = config.lora;
  if (lora.rank == 0) {
    if (lora == LoraConfig()) return absl::OkStatus();
    return BadModel("lora.rank is 0, so that its alpha, scaling and projections mean nothing");
  }
  if (lora.rank < 0 || lora.rank > kMaxExtent) {
    return BadModel(absl::StrCat("lora.rank is ", lora.rank, "; it must be from 0 to ", kMaxExtent));
  }
  if (!(lora.alpha > 0) || !std::isfinite(lora.alpha)) {
    return BadModel(absl::StrCat("lora.alpha is ", lora.alpha, "; it must be a positive number"));
  }
  size_t next = 0;
  for (const std::string& projection : LoraConfig::AllProjections()) {
    if (next < lora.projections.size() && lora.projections[next] == projection) ++next;
  }
  if (lora.projections.empty() || next != lora.projections.size()) {
    return BadModel(absl::StrCat("lora.target_modules are ", absl::StrJoin(lora.projections, ", "),
                                 "; they are some of ", absl::StrJoin(LoraConfig::AllProjections(), ", "),
                                 ", in this order"));
  }
  const DecoderSpec spec = MakeDecoderSpec(config);
  for (const std::string& projection : lora.projections) {
    const bool found = std::any_of(spec.adapters.begin(), spec.adapters.end(), [&](const AdapterSpec& adapter) {
      return absl::EndsWith(adapter.module, "." + projection);
    });
    if (found) continue;
    return BadModel(
        absl::StrCat("lora.target_modules names ", projection,
                     ", and no layer of this model has a projection of that name that can carry an adapter"));
  }
  for (const AdapterSpec& adapter : spec.adapters) {
    const int64_t width = std::min(adapter.inputs, adapter.outputs);
    if (lora.rank <= width) continue;
    return BadModel(absl::StrCat("lora.rank is ", lora.rank, ", which is more than ", width, ", the smaller side of ",
                                 adapter.module,
                                 "; lower the rank, or leave that projection out of lora.target_modules"));
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<std::string>& LoraConfig::AllProjections() {
  static const auto* const all =
      new std::vector<std::string>{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  return *all;
}

double LoraConfig::scale() const {
  const auto ranks = static_cast<double>(rank);
  return alpha / (rank_stabilised ? std::sqrt(ranks) : ranks);
}

ModelConfig ModelConfig::Base() const {
  ModelConfig base = *this;
  base.lora = LoraConfig();
  return base;
}

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
  if (!layer_windows.empty() && static_cast<int64_t>(layer_windows.size()) != num_hidden_layers) {
    return BadModel(absl::StrCat("model.layer_windows has ", layer_windows.size(), " windows; there are ",
                                 num_hidden_layers, " layers"));
  }
  for (int64_t window : layer_windows) {
    if (window < 0 || window > kMaxExtent) {
      return BadModel(absl::StrCat("a layer has a window of ", window, "; it must be from 0 to ", kMaxExtent));
    }
  }
  if (head_dim % 2 != 0) return BadModel(absl::StrCat("model.head_dim ", head_dim, " is odd; rotary needs pairs"));
  SYNCOPATE_RETURN_IF_ERROR(CheckExperts(*this));
  return CheckAdapters(*this);
}

bool ModelConfig::is_routed(int64_t layer) const {
  return num_experts > 0 && !std::binary_search(dense_layers.begin(), dense_layers.end(), layer);
}

absl::Status CheckLayerKinds(const ModelConfig& config, const std::string& device) {
  if (device == "cpu") return absl::OkStatus();
  if (config.lora.rank % 8 != 0 || config.lora.rank > kMaxGpuAdapterRank) {
    return Error(absl::StatusCode::kFailedPrecondition, "LORA_RANK_ON_GPU",
                 absl::StrCat("lora.rank is ", config.lora.rank, "; on ", device,
                              " it must be a multiple of 8 and at most ", kMaxGpuAdapterRank));
  }
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.is_routed(layer)) continue;
    return Error(absl::StatusCode::kFailedPrecondition, "EXPERTS_ON_GPU",
                 absl::StrCat("layer ", layer, " of the model has ", config.num_experts,
                              " routed experts, which are not built for ", device, ": use the CPU"));
  }
  if (!config.has_windows()) return absl::OkStatus();
  int64_t layer = 0;
  while (config.window(layer) == 0) ++layer;
  return Error(absl::StatusCode::kFailedPrecondition, "WINDOW_ON_GPU",
               absl::StrCat("layer ", layer, " of the model attends to ", config.window(layer),
                            " tokens alone, and sliding attention is not built for ", device,
                            ": have a context of at most that many tokens (model.context_length), or use the CPU"));
}

bool ModelConfig::has_windows() const {
  return std::any_of(layer_windows.begin(), layer_windows.end(), [](int64_t window) { return window > 0; });
}

std::vector<TensorSpec> ParameterSpecs(const ModelConfig& config, DType dtype) {
  std::vector<TensorSpec> specs;
  for (ParameterSpec& parameter : GetParameters(MakeDecoderSpec(config), config, dtype)) {
    specs.push_back(std::move(parameter.tensor));
  }
  return specs;
}

absl::StatusOr<Manifest> MakeManifest(const ModelConfig& config, DType dtype, int64_t bucket_bytes) {
  SYNCOPATE_RETURN_IF_ERROR(config.Validate());
  return Manifest::Create(ParameterSpecs(config, dtype), bucket_bytes);
}

absl::StatusOr<Manifest> MakeWireManifest(const ModelConfig& config, DType dtype, int64_t bucket_bytes) {
  SYNCOPATE_RETURN_IF_ERROR(config.Validate());
  std::vector<TensorSpec> specs = ParameterSpecs(config, dtype);
  std::map<std::string, int64_t> adapted;  // the rank of each projection with an adapter, by its weight and its bias
  for (const AdapterSpec& adapter : MakeDecoderSpec(config).adapters) {
    for (const char* leaf : {".weight", ".bias"}) adapted[adapter.module + leaf] = adapter.rank;
  }
  int64_t rows = 0;  // of one set behind the tensors that are joined with this one
  for (size_t i = 0; i < specs.size(); ++i) {
    specs[i].adapter = IsAdapterName(specs[i].name);
    if (const auto found = adapted.find(specs[i].name); found != adapted.end()) rows += found->second;
    const bool ends = i + 1 == specs.size() || specs[i].joint.empty() || specs[i + 1].joint != specs[i].joint;
    if (!ends) continue;
    if (dtype == DType::kBFloat16) specs[i].spare_rows = kAdapterPlaces * rows;
    rows = 0;
  }
  return Manifest::Create(std::move(specs), bucket_bytes);
}

namespace {

// Runs `fill` for parts of [0, count) on all cores: one core takes a minute for half a billion numbers. Each number
// depends only on its index.
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

void FillElements(double initial_std, uint64_t seed, size_t tensor, int64_t first, int64_t count, float* values) {
  // A number depends only on seed, tensor and index: ranks make only their shards and have the same model.
  const uint64_t key = HashCombine(seed, tensor);
  ForRanges(count, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto element = static_cast<uint64_t>(first + i);
      values[i] = initial_std == kInitialOnes ? 1.0f : static_cast<float>(initial_std * PhiloxNormal(key, element));
    }
  });
}

}  // namespace

void InitialiseWeights(const ModelConfig& config, const Manifest& manifest, uint64_t seed, float* arena) {
  std::fill_n(arena, manifest.arena_bytes() / sizeof(float), 0.0f);
  const std::vector<ParameterSpec> parameters = GetParameters(MakeDecoderSpec(config), config, DType::kFloat32);
  SYNCOPATE_CHECK(parameters.size() == manifest.tensors().size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    FillElements(parameters[i].initial_std, seed, i, 0, manifest.tensors()[i].NumElements(),
                 arena + manifest.ranges()[i].begin / sizeof(float));
  }
}

void InitialiseElements(const ModelConfig& config, uint64_t seed, size_t tensor, int64_t first, int64_t count,
                        float* values) {
  const std::vector<ParameterSpec> parameters = GetParameters(MakeDecoderSpec(config), config, DType::kFloat32);
  FillElements(parameters[tensor].initial_std, seed, tensor, first, count, values);
}

}  // namespace syncopate::model
