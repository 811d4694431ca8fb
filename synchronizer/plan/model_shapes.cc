#include "synchronizer/plan/model_shapes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace syncopate::synchronizer {
namespace {

const std::vector<ModelShape>& Shapes() {
  // name, layers, hidden, heads, kv heads, head, intermediate, vocabulary, tied, q/k/v bias, q/k norm
  static const auto* shapes = new std::vector<ModelShape>{
      {"qwen2.5-0.5b", 24, 896, 14, 2, 64, 4864, 151936, true, true, false},
      {"qwen2.5-1.5b", 28, 1536, 12, 2, 128, 8960, 151936, true, true, false},
      {"qwen2.5-3b", 36, 2048, 16, 2, 128, 11008, 151936, true, true, false},
      {"qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064, false, true, false},
      {"qwen2.5-14b", 48, 5120, 40, 8, 128, 13824, 152064, false, true, false},
      {"qwen2.5-32b", 64, 5120, 40, 8, 128, 27648, 152064, false, true, false},
      {"qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936, true, false, true},
      {"qwen3-1.7b", 28, 2048, 16, 8, 128, 6144, 151936, true, false, true},
      {"qwen3-4b", 36, 2560, 32, 8, 128, 9728, 151936, true, false, true},
      {"qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936, false, false, true},
      {"qwen3-32b", 64, 5120, 64, 8, 128, 25600, 151936, false, false, true},
  };
  return *shapes;
}

}  // namespace

std::vector<std::string> ModelShapeNames() {
  std::vector<std::string> names;
  for (const ModelShape& shape : Shapes()) names.push_back(shape.name);
  return names;
}

absl::StatusOr<ModelShape> FindModelShape(const std::string& name) {
  for (const ModelShape& shape : Shapes()) {
    if (shape.name == name) return shape;
  }
  return Error(absl::StatusCode::kNotFound, "UNKNOWN_MODEL",
               absl::StrFormat("no model \"%s\"; there are %s", name, absl::StrJoin(ModelShapeNames(), ", ")));
}

std::vector<TensorSpec> TensorsOf(const ModelShape& shape) {
  std::vector<TensorSpec> tensors;
  auto add = [&tensors](std::string name, std::vector<int64_t> extents) {
    tensors.push_back({std::move(name), DType::kBFloat16, std::move(extents)});
  };
  const int64_t query = shape.heads * shape.head_dim;
  const int64_t key = shape.key_value_heads * shape.head_dim;
  add("model.embed_tokens.weight", {shape.vocabulary, shape.hidden});
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    for (const auto& [name, rows] : {std::pair{"q_proj", query}, {"k_proj", key}, {"v_proj", key}}) {
      add(absl::StrCat(prefix, "self_attn.", name, ".weight"), {rows, shape.hidden});
      if (shape.qkv_bias) add(absl::StrCat(prefix, "self_attn.", name, ".bias"), {rows});
    }
    add(prefix + "self_attn.o_proj.weight", {shape.hidden, query});
    if (shape.qk_norm) {
      add(prefix + "self_attn.q_norm.weight", {shape.head_dim});
      add(prefix + "self_attn.k_norm.weight", {shape.head_dim});
    }
    add(prefix + "mlp.gate_proj.weight", {shape.intermediate, shape.hidden});
    add(prefix + "mlp.up_proj.weight", {shape.intermediate, shape.hidden});
    add(prefix + "mlp.down_proj.weight", {shape.hidden, shape.intermediate});
    add(prefix + "input_layernorm.weight", {shape.hidden});
    add(prefix + "post_attention_layernorm.weight", {shape.hidden});
  }
  add("model.norm.weight", {shape.hidden});
  if (!shape.tied) add("lm_head.weight", {shape.vocabulary, shape.hidden});
  return tensors;
}

absl::StatusOr<std::vector<TensorSpec>> ModelShapes(const std::string& name) {
  SYNCOPATE_ASSIGN_OR_RETURN(ModelShape shape, FindModelShape(name));
  return TensorsOf(shape);
}

}  // namespace syncopate::synchronizer
