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

std::vector<DecodeAdapter> ViewAdapters(const model::Linear& linear) {
  std::vector<DecodeAdapter> views;
  for (const model::Adapter& adapter : linear.adapters) {
    views.push_back({.a = MakeData(adapter.a),
                     .b = MakeData(adapter.b),
                     .begin = static_cast<int32_t>(adapter.begin),
                     .outputs = static_cast<int32_t>(adapter.b.size(0))});
  }
  return views;
}

}  // namespace

absl::StatusOr<DecodeViews> ViewForDecoding(const model::ModelConfig& config,
                                            const model::TransformerWeights& weights) {
  DecodeViews views{GetShape(config), {}};
  SYNCOPATE_RETURN_IF_ERROR(views.shape.Validate());
  if (weights.tokens.scalar_type() != at::kBFloat16) return Unsupported("weights in float32");
  if (config.output_bias || config.mlp_bias) return Unsupported("biases of o_proj and of the feed-forward");
  views.weights.tokens = MakeData(weights.tokens);
  if (config.learned_positions) views.weights.positions = MakeData(weights.positions);
  views.weights.norm = MakeData(weights.norm);
  views.weights.head = MakeData(weights.head);
  for (const model::LayerWeights& layer : weights.layers) {
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
                                    .qkv_adapters = ViewAdapters(layer.qkv[0]),
                                    .output_adapters = ViewAdapters(layer.output),
                                    .gate_up_adapters = ViewAdapters(layer.gate_up[0]),
                                    .down_adapters = ViewAdapters(layer.down)});
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
