#include "model/transformer.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "model/arena_parts.h"
#include "model/decoder_spec.h"
#include "model/host_rows.h"
#include "model/rope.h"
#include "model/routed_experts.h"

namespace syncopate::model {
namespace {

// Rotary embedding in the halves convention: x [R, heads, d], cos and sin [R, 1, d] float32. Computed in float32 and
// rounded to the dtype of x.
at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t half = x.size(-1) / 2;
  at::Tensor wide = x.to(at::kFloat);
  at::Tensor swapped = at::cat({wide.narrow(-1, half, half).neg(), wide.narrow(-1, 0, half)}, -1);
  return at::addcmul(wide * cos, swapped, sin).to(x.scalar_type());
}

// Finds tensors of an arena by name.
class ArenaIndex {
 public:
  ArenaIndex(const Manifest& manifest, const std::vector<ArenaPart>& parts, double adapter_scale)
      : manifest_(manifest), parts_(parts), adapter_scale_(adapter_scale) {
    for (size_t i = 0; i < manifest.tensors().size(); ++i) index_[manifest.tensors()[i].name] = i;
  }

  Linear ViewLinear(const std::string& name) const {
    Linear linear = ViewProduct(name, /*rows=*/0);
    AppendAdapter(name, /*begin=*/0, &linear);
    SetJointA({name}, &linear);
    return linear;
  }

  struct JointPart {
    std::string name;
    int64_t rows = 0;
  };
  // Views linears that are neighbours in wire order: their weights, then their biases. A rank's slices of them may be
  // one tensor, `fused`. Adapters are of each part by itself.
  JointLinear ViewJoint(const std::string& prefix, const std::vector<JointPart>& parts,
                        const std::string& fused) const {
    const bool is_fused = index_.count(prefix + fused + ".weight") > 0;
    if (!is_fused && !AreDense(prefix, parts)) {
      JointLinear apart;
      for (const JointPart& part : parts) apart.push_back(ViewLinear(prefix + part.name));
      return apart;
    }
    int64_t rows = 0;
    for (const JointPart& part : parts) rows += part.rows;
    Linear linear = is_fused ? ViewProduct(prefix + fused, 0) : ViewProduct(prefix + parts[0].name, rows);
    int64_t begin = 0;
    for (const JointPart& part : parts) {
      AppendAdapter(prefix + part.name, begin, &linear);
      begin += part.rows;
    }
    std::vector<std::string> names;
    for (const JointPart& part : parts) names.push_back(prefix + part.name);
    SetJointA(names, &linear);
    return {std::move(linear)};
  }

  // A view of the named tensor with `rows` rows: if it has fewer, the view extends into its neighbours. Undefined if no
  // part has its memory.
  at::Tensor View(const std::string& name, int64_t rows = 0) const {
    const size_t i = index_.at(name);
    std::vector<int64_t> shape = manifest_.tensors()[i].shape;
    if (rows > 0) shape[0] = rows;
    std::vector<int64_t> strides = shape.size() == 1 ? std::vector<int64_t>{1} : std::vector<int64_t>{shape[1], 1};
    const int64_t begin = manifest_.ranges()[i].begin;
    const auto part =
        std::find_if(parts_.begin(), parts_.end(), [begin](const ArenaPart& one) { return begin < one.range.end; });
    if (part == parts_.end() || begin < part->range.begin) return {};
    const int64_t offset = (begin - part->range.begin) / DTypeBytes(manifest_.tensors()[i].dtype);
    // detach(): views of weights take part in no autograd graph.
    return part->memory.as_strided(shape, strides, part->memory.storage_offset() + offset).detach();
  }

 private:
  bool has_bias(const std::string& name) const { return index_.count(name + ".bias") > 0; }

  // Weight and bias, with `rows` rows as View() does.
  Linear ViewProduct(const std::string& name, int64_t rows) const {
    return {View(name + ".weight", rows), has_bias(name) ? View(name + ".bias", rows) : at::Tensor()};
  }

  // The adapter of projection `name`, if it has one.
  void AppendAdapter(const std::string& name, int64_t begin, Linear* linear) const {
    if (index_.count(AdapterName(name, 'A')) == 0) return;
    linear->adapters.push_back({View(AdapterName(name, 'A')), View(AdapterName(name, 'B')), begin, adapter_scale_});
  }

  // `names`: the projections of the linear, with or without adapters.
  void SetJointA(const std::vector<std::string>& names, Linear* linear) const {
    std::vector<std::string> tensors;
    for (const std::string& name : names) {
      if (index_.count(AdapterName(name, 'A')) > 0) tensors.push_back(AdapterName(name, 'A'));
    }
    if (tensors.empty()) return;
    for (size_t i = 0; i + 1 < tensors.size(); ++i) {
      const int64_t end = manifest_.ranges()[index_.at(tensors[i])].end;
      if (end != manifest_.ranges()[index_.at(tensors[i + 1])].begin) return;
    }
    const int64_t rank = manifest_.tensors()[index_.at(tensors[0])].shape[0];
    linear->joint_a = View(tensors[0], rank * static_cast<int64_t>(tensors.size()));
  }

  // Whether the weights of these projections, and their biases, lie side by side.
  bool AreDense(const std::string& prefix, const std::vector<JointPart>& parts) const {
    return AreDense(prefix, parts, ".weight") &&
           (!has_bias(prefix + parts[0].name) || AreDense(prefix, parts, ".bias"));
  }

  // Whether each of these tensors ends where the next one begins.
  bool AreDense(const std::string& prefix, const std::vector<JointPart>& parts, const char* suffix) const {
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const ByteRange& range = manifest_.ranges()[index_.at(prefix + parts[i].name + suffix)];
      if (range.end != manifest_.ranges()[index_.at(prefix + parts[i + 1].name + suffix)].begin) return false;
    }
    return true;
  }

  const Manifest& manifest_;
  const std::vector<ArenaPart>& parts_;
  const double adapter_scale_;
  std::map<std::string, size_t> index_;
};

at::Tensor Apply(const Linear& linear, const at::Tensor& x, bool adds_bias = true) {
  const at::Tensor y =
      adds_bias && linear.bias.defined() ? at::linear(x, linear.weight, linear.bias) : at::linear(x, linear.weight);
  AddAdapters(linear, x, y);
  return y;
}

// Applies a linear of which this rank has a part of the columns, and sums over ranks.
at::Tensor ApplyAndSum(const Linear& linear, const at::Tensor& x, PartialSums* sums) {
  if (sums == nullptr) return Apply(linear, x);
  // Only one rank adds the bias.
  return sums->Sum(Apply(linear, x, sums->adds_biases()));
}

// The product of joint linears with `x`, as one tensor.
at::Tensor ApplyWhole(const JointLinear& joint, const at::Tensor& x) {
  if (joint.size() == 1) return Apply(joint[0], x);
  std::vector<at::Tensor> products;
  for (const Linear& linear : joint) products.push_back(Apply(linear, x));
  return at::cat(products, 1);
}

// The products of joint linears with `x`, one for each linear; rows[i] is the number of rows of linear i.
std::vector<at::Tensor> ApplyJoint(const JointLinear& joint, const at::Tensor& x, const std::vector<int64_t>& rows) {
  std::vector<at::Tensor> products;
  if (joint.size() == 1) {
    at::Tensor all = Apply(joint[0], x);
    int64_t begin = 0;
    for (int64_t count : rows) {
      products.push_back(all.narrow(1, begin, count));
      begin += count;
    }
  } else {
    for (const Linear& linear : joint) products.push_back(Apply(linear, x));
  }
  return products;
}

}  // namespace

std::vector<at::Tensor> TransformerWeights::Distinct() const {
  std::vector<at::Tensor> all;
  auto add = [&all](const at::Tensor& tensor) {
    if (tensor.defined()) all.push_back(tensor);
  };
  add(tokens);
  auto add_linears = [&add](const JointLinear& linears) {
    for (const Linear& linear : linears) add(linear.weight);
    for (const Linear& linear : linears) add(linear.bias);
  };
  add(positions);
  for (const LayerWeights& layer : layers) {
    add(layer.input_norm);
    add_linears(layer.qkv);
    add(layer.q_norm);
    add(layer.k_norm);
    add_linears({layer.output});
    add(layer.post_norm);
    if (layer.router.defined()) {
      add(layer.router);
      for (const ExpertWeights& expert : layer.experts) {
        add_linears(expert.gate_up);
        add_linears({expert.down});
      }
      continue;
    }
    add_linears(layer.gate_up);
    add_linears({layer.down});
  }
  add(norm);
  if (!head.is_same(tokens)) add(head);
  auto add_adapters = [&add](const JointLinear& linears) {
    for (const Linear& linear : linears) {
      for (const Adapter& adapter : linear.adapters) {
        add(adapter.a);
        add(adapter.b);
      }
    }
  };
  for (const LayerWeights& layer : layers) {
    add_adapters(layer.qkv);
    add_adapters({layer.output});
    add_adapters(layer.gate_up);
    add_adapters({layer.down});
  }
  return all;
}

TransformerWeights WithoutAdapters(TransformerWeights weights) {
  auto remove = [](JointLinear& linears) {
    for (Linear& linear : linears) linear = {linear.weight, linear.bias};
  };
  for (LayerWeights& layer : weights.layers) {
    remove(layer.qkv);
    remove(layer.gate_up);
    layer.output = {layer.output.weight, layer.output.bias};
    layer.down = {layer.down.weight, layer.down.bias};
  }
  return weights;
}

at::Tensor InnerProducts(const Linear& linear, const at::Tensor& x) {
  // Under autograd the leaves are the a of the adapters.
  if (linear.joint_a.defined() && !linear.adapters[0].a.requires_grad()) return at::linear(x, linear.joint_a);
  std::vector<at::Tensor> parts;
  for (const Adapter& adapter : linear.adapters) parts.push_back(at::linear(x, adapter.a));
  return at::cat(parts, 1);
}

void AddAdapters(const Linear& linear, const at::Tensor& x, const at::Tensor& y) {
  if (!linear.adapters.empty()) AddOuterProducts(linear, InnerProducts(linear, x), y);
}

void AddOuterProducts(const Linear& linear, const at::Tensor& inner, const at::Tensor& y) {
  int64_t place = 0;
  for (const Adapter& adapter : linear.adapters) {
    const int64_t rank = adapter.b.size(1);
    y.narrow(1, adapter.begin, adapter.b.size(0))
        .addmm_(inner.narrow(1, place, rank), adapter.b.t(), /*beta=*/1, /*alpha=*/adapter.scale);
    place += rank;
  }
}

TransformerWeights ViewWeights(const ModelConfig& config, const Manifest& manifest, const at::Tensor& arena) {
  return ViewWeights(config, manifest, std::vector<ArenaPart>{{{0, manifest.arena_bytes()}, arena}});
}

TransformerWeights ViewWeights(const ModelConfig& config, const Manifest& manifest,
                               const std::vector<ArenaPart>& parts) {
  const ArenaIndex index(manifest, parts, config.lora.enabled() ? config.lora.scale() : 0);
  const DecoderSpec spec = MakeDecoderSpec(config);
  TransformerWeights weights;
  weights.tokens = index.View("model.embed_tokens.weight");
  if (config.learned_positions) weights.positions = index.View("model.embed_positions.weight");
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    LayerWeights& layer = weights.layers.emplace_back();
    layer.input_norm = index.View(prefix + "input_layernorm.weight");
    layer.qkv = index.ViewJoint(
        prefix + "self_attn.",
        {{"q_proj", config.query_size()}, {"k_proj", config.key_value_size()}, {"v_proj", config.key_value_size()}},
        "qkv_proj");
    if (config.qk_norm) {
      layer.q_norm = index.View(prefix + "self_attn.q_norm.weight");
      layer.k_norm = index.View(prefix + "self_attn.k_norm.weight");
    }
    layer.output = index.ViewLinear(prefix + "self_attn.o_proj");
    layer.post_norm = index.View(prefix + "post_attention_layernorm.weight");
    if (spec.layers[i].feed_forward == FeedForwardKind::kRouted) {
      layer.router = index.View(prefix + "mlp.gate.weight");
      for (int64_t expert = 0; expert < spec.layers[i].experts; ++expert) {
        const std::string one = absl::StrCat(prefix, "mlp.experts.", expert, ".");
        layer.experts.push_back(
            {index.ViewJoint(one,
                             {{"gate_proj", config.moe_intermediate_size}, {"up_proj", config.moe_intermediate_size}},
                             "gate_up_proj"),
             index.ViewLinear(one + "down_proj")});
      }
      continue;
    }
    layer.gate_up = index.ViewJoint(prefix + "mlp.",
                                    {{"gate_proj", config.intermediate_size}, {"up_proj", config.intermediate_size}},
                                    "gate_up_proj");
    layer.down = index.ViewLinear(prefix + "mlp.down_proj");
  }
  weights.norm = index.View("model.norm.weight");
  weights.head = config.tie_word_embeddings ? weights.tokens : index.View("lm_head.weight");
  return weights;
}

Transformer::Transformer(const ModelConfig& config, at::Device device) : config_(config) {
  // The tables are computed on the CPU, so that they are the same on every device.
  at::Tensor frequency = at::pow(config.rope_theta, at::arange(0, config.head_dim, 2, at::kFloat) / -config.head_dim);
  ScaleFrequencies(config.rope_scaling, config.rope_theta,
                   absl::MakeSpan(frequency.data_ptr<float>(), static_cast<size_t>(frequency.numel())));
  // Computed in float32 for every model dtype: bfloat16 is too coarse for the angles of positions in the thousands.
  at::Tensor angle = at::outer(at::arange(config.max_position_embeddings, at::kFloat), frequency);
  const double factor = config.rope_scaling.attention_factor;
  at::Tensor cos = angle.cos() * factor, sin = angle.sin() * factor;
  cos_ = at::cat({cos, cos}, -1).to(device);
  sin_ = at::cat({sin, sin}, -1).to(device);
}

at::Tensor Transformer::RmsNorm(const at::Tensor& x, const at::Tensor& weight) const {
  at::Tensor wide = x.to(at::kFloat);
  at::Tensor scale = at::rsqrt(at::mean(wide * wide, {-1}, /*keepdim=*/true) + config_.rms_norm_eps);
  // Rounds before multiplying by the weight, as the published models' own code does.
  return (wide * scale).to(x.scalar_type()) * weight;
}

at::Tensor Transformer::AttentionBlock(const LayerWeights& layer, int64_t index, const at::Tensor& x,
                                       const at::Tensor& cos, const at::Tensor& sin, Attention& attention,
                                       PartialSums* sums) const {
  const int64_t rows = x.size(0), heads = config_.num_attention_heads, kv_heads = config_.num_key_value_heads;
  const std::vector<at::Tensor> qkv =
      ApplyJoint(layer.qkv, RmsNorm(x, layer.input_norm),
                 {config_.query_size(), config_.key_value_size(), config_.key_value_size()});
  at::Tensor q = qkv[0].view({rows, heads, config_.head_dim});
  at::Tensor k = qkv[1].view({rows, kv_heads, config_.head_dim});
  at::Tensor v = qkv[2].view({rows, kv_heads, config_.head_dim});
  if (config_.qk_norm) {
    q = RmsNorm(q, layer.q_norm);
    k = RmsNorm(k, layer.k_norm);
  }
  return ApplyAndSum(layer.output, attention.Attend(index, Rotate(q, cos, sin), Rotate(k, cos, sin), v), sums);
}

at::Tensor Transformer::FeedForward(const LayerWeights& layer, const at::Tensor& x, PartialSums* sums) const {
  if (layer.router.defined()) {
    const at::Tensor routed =
        RoutedFeedForward(config_, layer, RmsNorm(x, layer.post_norm), [](const at::Tensor& gate_up) {
          const std::vector<at::Tensor> halves = gate_up.chunk(2, 1);
          return at::silu(halves[0]) * halves[1];
        });
    return sums == nullptr ? routed : sums->Sum(routed);
  }
  const std::vector<at::Tensor> gate_up =
      ApplyJoint(layer.gate_up, RmsNorm(x, layer.post_norm), {config_.intermediate_size, config_.intermediate_size});
  return ApplyAndSum(layer.down, at::silu(gate_up[0]) * gate_up[1], sums);
}

at::Tensor Transformer::AttendOnHost(const LayerWeights& layer, int64_t index, const at::Tensor& normed,
                                     const at::Tensor& positions, Attention& attention, PartialSums* sums) const {
  const HostRows& rows = FastestHostRows();
  const int64_t count = normed.size(0), dim = config_.head_dim;
  const int64_t heads = config_.num_attention_heads, kv_heads = config_.num_key_value_heads;
  const at::Tensor qkv = ApplyWhole(layer.qkv, normed);
  float* const data = qkv.mutable_data_ptr<float>();
  const int64_t stride = qkv.size(1);
  const float eps = static_cast<float>(config_.rms_norm_eps);
  for (int64_t row = 0; config_.qk_norm && row < count; ++row) {
    float *const q = data + row * stride, *const k = q + config_.query_size();
    rows.Norm(q, nullptr, layer.q_norm.const_data_ptr<float>(), eps, heads, dim, nullptr, q, nullptr);
    rows.Norm(k, nullptr, layer.k_norm.const_data_ptr<float>(), eps, kv_heads, dim, nullptr, k, nullptr);
  }
  rows.Rotate(data, count, stride, heads + kv_heads, dim / 2, cos_.const_data_ptr<float>(),
              sin_.const_data_ptr<float>(), dim, positions.const_data_ptr<int64_t>(), /*inverse=*/false);
  const at::Tensor all = qkv.view({count, heads + 2 * kv_heads, dim});
  return ApplyAndSum(layer.output,
                     attention.Attend(index, all.narrow(1, 0, heads), all.narrow(1, heads, kv_heads),
                                      all.narrow(1, heads + kv_heads, kv_heads)),
                     sums);
}

at::Tensor Transformer::ForwardOnHost(const TransformerWeights& weights, const at::Tensor& ids,
                                      const at::Tensor& positions, Attention& attention, PartialSums* sums) const {
  const HostRows& rows = FastestHostRows();
  const int64_t* const places = positions.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < positions.numel(); ++row) {
    TORCH_CHECK_INDEX(places[row] >= 0 && places[row] < cos_.size(0), "position ", places[row], " is not below ",
                      cos_.size(0));
  }
  at::Tensor x = at::embedding(weights.tokens, ids);
  at::Tensor normed = at::empty_like(x);
  // x += delta, and its norm.
  const auto add_and_norm = [&](const at::Tensor& delta, const at::Tensor& weight) {
    float* const sum = x.mutable_data_ptr<float>();
    rows.Norm(sum, delta.defined() ? delta.const_data_ptr<float>() : nullptr, weight.const_data_ptr<float>(),
              static_cast<float>(config_.rms_norm_eps), x.size(0), x.size(1), sum, normed.mutable_data_ptr<float>(),
              nullptr);
  };
  at::Tensor delta;
  if (config_.learned_positions) delta = at::embedding(weights.positions, positions);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    add_and_norm(delta, layer.input_norm);
    add_and_norm(AttendOnHost(layer, static_cast<int64_t>(i), normed, positions, attention, sums), layer.post_norm);
    const auto activate = [&rows](const at::Tensor& gate_up) {
      const at::Tensor activated = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
      rows.SwiGlu(gate_up.const_data_ptr<float>(), gate_up.size(0), activated.size(1),
                  activated.mutable_data_ptr<float>());
      return activated;
    };
    if (layer.router.defined()) {
      delta = RoutedFeedForward(config_, layer, normed, activate);
      if (sums != nullptr) delta = sums->Sum(delta);
    } else {
      delta = ApplyAndSum(layer.down, activate(ApplyWhole(layer.gate_up, normed)), sums);
    }
  }
  add_and_norm(delta, weights.norm);
  return normed;
}

at::Tensor Transformer::Forward(const TransformerWeights& weights, const at::Tensor& ids, const at::Tensor& positions,
                                Attention& attention, PartialSums* sums) const {
  // The loops overwrite their inputs, which is allowed only in inference.
  if (weights.tokens.is_cpu() && weights.tokens.scalar_type() == at::kFloat && c10::InferenceMode::is_enabled()) {
    return ForwardOnHost(weights, ids, positions, attention, sums);
  }
  at::Tensor x = at::embedding(weights.tokens, ids);
  if (config_.learned_positions) x = x + at::embedding(weights.positions, positions);
  at::Tensor cos = cos_.index_select(0, positions).unsqueeze(1), sin = sin_.index_select(0, positions).unsqueeze(1);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    x = x + AttentionBlock(layer, static_cast<int64_t>(i), x, cos, sin, attention, sums);
    x = x + FeedForward(layer, x, sums);
  }
  return RmsNorm(x, weights.norm);
}

at::Tensor Transformer::Logits(const TransformerWeights& weights, const at::Tensor& hidden) const {
  return at::linear(hidden, weights.head).to(at::kFloat);
}

}  // namespace syncopate::model
