#include "rollouter/cuda/decode_views.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::rollouter {
namespace {

absl::Status Unsupported(const std::string& what) {
  return Error(absl::StatusCode::kFailedPrecondition, "UNSUPPORTED_SHAPE",
               absl::StrCat("the decode kernels are not made for ", what));
}

const void* MakeData(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }

// `linears`: the same projection with the adapters of each set.
std::vector<AdapterColumns> ViewAdapters(const std::vector<const model::Linear*>& linears) {
  std::vector<AdapterColumns> views;
  for (size_t i = 0; i < linears.front()->adapters.size(); ++i) {
    const model::Adapter& adapter = linears.front()->adapters[i];
    AdapterColumns& view = views.emplace_back();
    view.begin = static_cast<int32_t>(adapter.begin);
    view.outputs = static_cast<int32_t>(adapter.b.size(0));
    for (size_t set = 0; set < linears.size(); ++set) {
      view.a[set] = MakeData(linears[set]->adapters[i].a);
      view.b[set] = MakeData(linears[set]->adapters[i].b);
    }
  }
  return views;
}

}  // namespace

absl::StatusOr<DecodeViews> ViewForDecoding(const model::ModelConfig& config,
                                            const std::vector<const model::TransformerWeights*>& sets) {
  const model::TransformerWeights& weights = *sets.front();
  DecodeViews views{GetShape(config), {}};
  SYNCOPATE_RETURN_IF_ERROR(views.shape.Validate());
  if (weights.tokens.scalar_type() != at::kBFloat16) return Unsupported("weights in float32");
  if (config.lora.enabled() && sets.size() != size_t{model::kAdapterSets}) return Unsupported("one adapter set");
  if (config.output_bias || config.mlp_bias) return Unsupported("biases of o_proj and of the feed-forward");
  views.weights.tokens = MakeData(weights.tokens);
  if (config.learned_positions) views.weights.positions = MakeData(weights.positions);
  views.weights.norm = MakeData(weights.norm);
  views.weights.head = MakeData(weights.head);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const model::LayerWeights& layer = weights.layers[i];
    // One projection in all sets.
    const auto in_sets = [&sets, i](const auto& get) {
      std::vector<const model::Linear*> linears;
      for (const model::TransformerWeights* set : sets) linears.push_back(&get(set->layers[i]));
      return ViewAdapters(linears);
    };
    using Layer = model::LayerWeights;
    if (layer.qkv.size() != 1 || layer.gate_up.size() != 1) return Unsupported("joint matrices with gaps between them");
    views.weights.layers.push_back({.input_norm = MakeData(layer.input_norm),
                                    .qkv = MakeData(layer.qkv[0].weight),
                                    .qkv_bias = MakeData(layer.qkv[0].bias),
                                    .q_norm = MakeData(layer.q_norm),
                                    .k_norm = MakeData(layer.k_norm),
                                    .output = MakeData(layer.output.weight),
                                    .post_norm = MakeData(layer.post_norm),
                                    .gate_up = MakeData(layer.gate_up[0].weight),
                                    .down = MakeData(layer.down.weight),
                                    .qkv_adapters = in_sets([](const Layer& l) -> auto& { return l.qkv[0]; }),
                                    .output_adapters = in_sets([](const Layer& l) -> auto& { return l.output; }),
                                    .gate_up_adapters = in_sets([](const Layer& l) -> auto& { return l.gate_up[0]; }),
                                    .down_adapters = in_sets([](const Layer& l) -> auto& { return l.down; })});
  }
  return views;
}

std::vector<float> MakeRotations(const model::ModelConfig& config, int64_t positions) {
  const model::Transformer transformer(config, at::kCPU);
  const at::Tensor cos = transformer.cos(), sin = transformer.sin();
  const int64_t count = positions * (config.head_dim / 2);
  std::vector<float> rotations(static_cast<size_t>(2 * count));
  const float* cosines = cos.const_data_ptr<float>();
  const float* sines = sin.const_data_ptr<float>();
  for (int64_t i = 0; i < count; ++i) {
    rotations[static_cast<size_t>(2 * i)] = cosines[i];
    rotations[static_cast<size_t>(2 * i + 1)] = sines[i];
  }
  return rotations;
}

}  // namespace syncopate::rollouter
