#include "trainer/actor/decoder_program.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"

// Joint projections (q, k, v; gate, up) are one product where they lie side by side in the arena, and several where
// alignment left gaps between them.
namespace syncopate::trainer {

using model::LayerWeights;
using model::Linear;
using model::Ops;
using model::PackedSequences;
using model::TransformerWeights;

namespace {

using Linears = absl::Span<const Linear>;

Linears One(const Linear& linear) { return absl::MakeConstSpan(&linear, 1); }

// model::InnerProducts() of each linear; undefined for one without adapters.
std::vector<at::Tensor> InnerProducts(Linears linears, const at::Tensor& x) {
  std::vector<at::Tensor> made;
  for (const Linear& linear : linears) {
    made.push_back(linear.adapters.empty() ? at::Tensor() : model::InnerProducts(linear, x));
  }
  return made;
}

// x W^T + b of all of `linears`, side by side, and what their adapters add by `inner`, their InnerProducts(). Without
// `inner` adapters add nothing.
at::Tensor Product(Linears linears, const at::Tensor& x, const std::vector<at::Tensor>& inner = {}) {
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < linears.size(); ++i) {
    const Linear& linear = linears[i];
    parts.push_back(linear.bias.defined() ? at::linear(x, linear.weight, linear.bias) : at::linear(x, linear.weight));
    if (!inner.empty()) model::AddOuterProducts(linear, inner[i], parts.back());
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts, 1);
}

// Where the adapter of the columns from `column` on is; nullopt if there is none.
struct AdapterPlace {
  size_t linear, adapter;
};
std::optional<AdapterPlace> FindAdapter(Linears linears, int64_t column) {
  for (size_t i = 0; i < linears.size(); ++i) {
    for (size_t a = 0; a < linears[i].adapters.size(); ++a) {
      if (linears[i].adapters[a].begin == column) return AdapterPlace{i, a};
    }
    column -= linears[i].weight.size(0);
  }
  return std::nullopt;
}

// What the adapter of the columns from `column` on adds to Product(); nothing if there is none.
Ops::LowRank FindTerm(Linears linears, const std::vector<at::Tensor>& inner, int64_t column) {
  const std::optional<AdapterPlace> place = FindAdapter(linears, column);
  if (!place.has_value()) return {};
  const model::Adapter& adapter = linears[place->linear].adapters[place->adapter];
  const int64_t rank = adapter.b.size(1);
  const auto begin = static_cast<int64_t>(place->adapter) * rank;  // all adapters of a linear are of one rank
  return {inner[place->linear].narrow(1, begin, rank), adapter.b, adapter.scale};
}

// The gradient of that adapter's b; undefined if there is none.
at::Tensor FindOuterGradient(Linears linears, Linears gradients, int64_t column) {
  const std::optional<AdapterPlace> place = FindAdapter(linears, column);
  return place.has_value() ? gradients[place->linear].adapters[place->adapter].b : at::Tensor();
}

// The gradients of model::InnerProducts() of each linear, by that of Product(); undefined for one without adapters.
std::vector<at::Tensor> InnerGradients(Linears linears, const at::Tensor& dy) {
  std::vector<at::Tensor> made;
  int64_t begin = 0;
  for (const Linear& linear : linears) {
    const at::Tensor part = dy.narrow(1, begin, linear.weight.size(0));
    begin += linear.weight.size(0);
    at::Tensor& inner = made.emplace_back();
    if (linear.adapters.empty()) continue;
    const int64_t rank = linear.adapters[0].b.size(1);
    inner = at::empty({dy.size(0), rank * static_cast<int64_t>(linear.adapters.size())}, dy.options());
    int64_t place = 0;
    for (const model::Adapter& adapter : linear.adapters) {
      inner.narrow(1, place, rank)
          .addmm_(part.narrow(1, adapter.begin, adapter.b.size(0)), adapter.b, /*beta=*/0, /*alpha=*/adapter.scale);
      place += rank;
    }
  }
  return made;
}

// The gradient of x by that of Product() and its InnerGradients(), which linears without adapters do not need.
at::Tensor InputGradient(Linears linears, const at::Tensor& dy, const std::vector<at::Tensor>& inner = {}) {
  at::Tensor dx = linears.size() == 1 ? at::mm(dy, linears[0].weight)
                                      : at::zeros({dy.size(0), linears[0].weight.size(1)}, dy.options());
  int64_t begin = 0;
  for (size_t i = 0; i < linears.size(); ++i) {
    const Linear& linear = linears[i];
    if (linears.size() > 1) dx.addmm_(dy.narrow(1, begin, linear.weight.size(0)), linear.weight);
    begin += linear.weight.size(0);
    if (linear.joint_a.defined()) {
      dx.addmm_(inner[i], linear.joint_a);
      continue;
    }
    int64_t place = 0;
    for (const model::Adapter& adapter : linear.adapters) {
      dx.addmm_(inner[i].narrow(1, place, adapter.a.size(0)), adapter.a);
      place += adapter.a.size(0);
    }
  }
  return dx;
}

// What backward knows of the adapters of joint linears.
struct Inner {
  std::vector<at::Tensor> products;   // InnerProducts(); none if the gradients of b are not to be made
  std::vector<at::Tensor> gradients;  // InnerGradients(); none if those of a are not to be made
};

// Adds the gradients of the b of a linear's adapters, by its one of InnerProducts() and the gradient of its product.
void AddOuterGradients(const Ops& ops, const Linear& linear, const Linear& gradient, const at::Tensor& dy,
                       const at::Tensor& product) {
  const at::Tensor products = product.mul(linear.adapters[0].scale);
  int64_t place = 0;
  for (size_t a = 0; a < linear.adapters.size(); ++a) {
    const model::Adapter& adapter = linear.adapters[a];
    const int64_t rank = adapter.b.size(1);
    ops.AddWeightGradient(gradient.adapters[a].b, dy.narrow(1, adapter.begin, adapter.b.size(0)),
                          products.narrow(1, place, rank));
    place += rank;
  }
}

// Adds the gradients of their a, by its one of InnerGradients() and its input.
void AddInnerGradients(const Ops& ops, const Linear& gradient, const at::Tensor& x, const at::Tensor& inner) {
  if (gradient.joint_a.defined()) return ops.AddWeightGradient(gradient.joint_a, inner, x);
  int64_t place = 0;
  for (const model::Adapter& adapter : gradient.adapters) {
    ops.AddWeightGradient(adapter.a, inner.narrow(1, place, adapter.a.size(0)), x);
    place += adapter.a.size(0);
  }
}

// Adds the gradients of weights, biases and adapters, those that `gradients` and `inner` have. Only the gradients of
// weights and of a need x.
void AddGradients(const Ops& ops, Linears weights, Linears gradients, const at::Tensor& dy, const at::Tensor& x,
                  const Inner& inner = {}) {
  int64_t begin = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const Linear &linear = weights[i], &gradient = gradients[i];
    const int64_t rows = linear.weight.size(0);
    if (gradient.weight.defined() || gradient.bias.defined()) {
      // The kernels take whole rows.
      const at::Tensor part = weights.size() == 1 ? dy : dy.narrow(1, begin, rows).contiguous();
      if (gradient.weight.defined()) ops.AddWeightGradient(gradient.weight, part, x);
      if (gradient.bias.defined()) ops.AddBiasGradient(gradient.bias, part);
    }
    if (!linear.adapters.empty()) {
      if (!inner.products.empty()) {
        AddOuterGradients(ops, linear, gradient, dy.narrow(1, begin, rows), inner.products[i]);
      }
      if (!inner.gradients.empty()) AddInnerGradients(ops, gradient, x, inner.gradients[i]);
    }
    begin += rows;
  }
}

}  // namespace

// base + delta. The sum is made by the norm that reads it; without `delta` it is `base`.
struct DecoderProgram::Stream {
  at::Tensor base, delta;
};

DecoderProgram::DecoderProgram(const model::Transformer& transformer, at::Device device, Recompute recompute,
                               bool deterministic)
    : config_(transformer.config()),
      ops_(model::OpsFor(device, deterministic)),
      recompute_(recompute),
      cos_(transformer.cos()),
      sin_(transformer.sin()) {}

int64_t DecoderProgram::Tape::bytes() const {
  int64_t total = 0;
  auto add = [&total](const at::Tensor& tensor) {
    if (tensor.defined()) total += static_cast<int64_t>(tensor.nbytes());
  };
  for (const LayerTape& layer : layers) {
    for (const at::Tensor* tensor :
         {&layer.input, &layer.input_rstd, &layer.input_normed, &layer.q_raw, &layer.k_raw, &layer.q_rstd,
          &layer.k_rstd, &layer.qkv, &layer.attended.y, &layer.middle, &layer.middle_rstd, &layer.middle_normed,
          &layer.gate_up, &layer.activation, &layer.routing.probabilities, &layer.routing.experts,
          &layer.routing.weights, &layer.routing.rows, &layer.routing.places}) {
      add(*tensor);
    }
    for (const std::vector<at::Tensor>* tensors :
         {&layer.attended.stats, &layer.qkv_inner, &layer.output_inner, &layer.gate_up_inner, &layer.down_inner}) {
      for (const at::Tensor& tensor : *tensors) add(tensor);
    }
  }
  add(output);
  add(output_rstd);
  return total;
}

// Per-head norms of q and k (Qwen3), in place in qkv.
void DecoderProgram::NormHeads(const LayerWeights& layer, LayerTape* tape) const {
  const int64_t rows = tape->qkv.size(0);
  auto norm = [&](int64_t begin, int64_t heads, const at::Tensor& weight, at::Tensor* raw, at::Tensor* rstd) {
    at::Tensor part = tape->qkv.narrow(1, begin, heads * config_.head_dim);
    *raw = part.reshape({rows * heads, config_.head_dim});
    // reshape() copies only if it must; what backward needs is the value before the norm, which is written over below.
    if (raw->data_ptr() == part.data_ptr()) *raw = raw->clone();
    Ops::Normed normed = ops_.AddNorm(*raw, {}, weight, config_.rms_norm_eps);
    *rstd = normed.rstd;
    part.copy_(normed.y.view({rows, heads * config_.head_dim}));
  };
  norm(0, config_.num_attention_heads, layer.q_norm, &tape->q_raw, &tape->q_rstd);
  norm(config_.query_size(), config_.num_key_value_heads, layer.k_norm, &tape->k_raw, &tape->k_rstd);
}

void DecoderProgram::NormHeadsBackward(const LayerWeights& layer, const LayerTape& tape, const LayerWeights& gradients,
                                       const at::Tensor& dqkv) const {
  const int64_t rows = dqkv.size(0);
  auto back = [&](int64_t begin, int64_t heads, const at::Tensor& weight, const at::Tensor& raw, const at::Tensor& rstd,
                  const at::Tensor& gradient) {
    at::Tensor part = dqkv.narrow(1, begin, heads * config_.head_dim);
    at::Tensor dy = part.reshape({rows * heads, config_.head_dim});
    Ops::NormGradient normed = ops_.AddNormBackward(dy, raw, rstd, weight, {}, gradient, /*wanted=*/false);
    part.copy_(normed.dsum.view({rows, heads * config_.head_dim}));
  };
  back(0, config_.num_attention_heads, layer.q_norm, tape.q_raw, tape.q_rstd, gradients.q_norm);
  back(config_.query_size(), config_.num_key_value_heads, layer.k_norm, tape.k_raw, tape.k_rstd, gradients.k_norm);
}

Ops::AttentionShape DecoderProgram::ComputeAttention(size_t index) const {
  return {config_.num_attention_heads, config_.num_key_value_heads, config_.window(static_cast<int64_t>(index))};
}

at::Tensor DecoderProgram::RunExperts(const LayerWeights& layer, const at::Tensor& x, LayerTape* tape) const {
  tape->routing = model::Route(x, layer.router, config_.num_experts_per_tok, config_.norm_topk_prob);
  const model::Routing& routing = tape->routing;
  const at::Tensor weights = routing.weights.flatten().index_select(0, routing.places).unsqueeze(1).to(x.scalar_type());
  tape->gate_up = at::empty({routing.rows.size(0), 2 * config_.moe_intermediate_size}, x.options());
  at::Tensor sum = at::zeros_like(x);
  for (size_t expert = 0; expert < layer.experts.size(); ++expert) {
    const int64_t begin = routing.begins[expert], visits = routing.visits(expert);
    if (visits == 0) continue;
    const at::Tensor rows = routing.rows.narrow(0, begin, visits);
    const at::Tensor gate_up = tape->gate_up.narrow(0, begin, visits);
    gate_up.copy_(model::ExpertProduct(layer.experts[expert].gate_up, x.index_select(0, rows)));
    const at::Tensor output = model::ExpertProduct({layer.experts[expert].down}, ops_.SwiGlu(gate_up));
    sum.index_add_(0, rows, output * weights.narrow(0, begin, visits));
  }
  return sum;
}

DecoderProgram::ExpertGradients DecoderProgram::ExpertsBackward(const LayerWeights& layer, const LayerTape& tape,
                                                                const at::Tensor& d,
                                                                const LayerWeights& gradients) const {
  const model::Routing& routing = tape.routing;
  const at::Tensor weights = routing.weights.flatten().index_select(0, routing.places).unsqueeze(1).to(d.scalar_type());
  const at::Tensor dweights = at::zeros_like(routing.weights);
  ExpertGradients made{at::zeros_like(d), at::empty_like(tape.gate_up), {}};
  for (size_t expert = 0; expert < layer.experts.size(); ++expert) {
    const int64_t begin = routing.begins[expert], visits = routing.visits(expert);
    if (visits == 0) continue;
    const at::Tensor rows = routing.rows.narrow(0, begin, visits), weight = weights.narrow(0, begin, visits);
    const at::Tensor d_here = d.index_select(0, rows);
    const at::Tensor dactivated = InputGradient(One(layer.experts[expert].down), d_here);
    Ops::SwiGluGradient mlp =
        ops_.SwiGluBackward(dactivated * weight, tape.gate_up.narrow(0, begin, visits), /*wanted=*/true);
    // An output counts by its weight: the weight's gradient is the output times its gradient.
    dweights.view(-1).index_copy_(0, routing.places.narrow(0, begin, visits),
                                  (dactivated.to(at::kFloat) * mlp.y.to(at::kFloat)).sum(-1));
    AddGradients(ops_, One(layer.experts[expert].down), One(gradients.experts[expert].down), d_here * weight, mlp.y);
    made.dx.index_add_(0, rows, InputGradient(layer.experts[expert].gate_up, mlp.dgate_up));
    made.dgate_up.narrow(0, begin, visits).copy_(mlp.dgate_up);
  }
  made.drouter = model::RouteBackward(routing, dweights, config_.norm_topk_prob);
  made.dx += at::mm(made.drouter, layer.router.to(at::kFloat)).to(d.scalar_type());
  return made;
}

void DecoderProgram::AddExpertGradients(const LayerWeights& layer, const LayerTape& tape, const ExpertGradients& made,
                                        const at::Tensor& x, const LayerWeights& gradients) const {
  if (!gradients.router.defined()) return;
  for (size_t expert = 0; expert < gradients.experts.size(); ++expert) {
    const int64_t begin = tape.routing.begins[expert], visits = tape.routing.visits(expert);
    if (visits == 0) continue;
    AddGradients(ops_, layer.experts[expert].gate_up, gradients.experts[expert].gate_up,
                 made.dgate_up.narrow(0, begin, visits), x.index_select(0, tape.routing.rows.narrow(0, begin, visits)));
  }
  ops_.AddWeightGradient(gradients.router, made.drouter, x.to(at::kFloat));
}

// `delta`: what the layer's second half adds to tape.middle.
DecoderProgram::LayerTape DecoderProgram::RunLayer(size_t index, const LayerWeights& layer, const Stream& stream,
                                                   const PackedSequences& sequences, at::Tensor* delta) const {
  LayerTape tape;
  // The sum of the residual stream is made by the norm that reads it: one pass over memory instead of two.
  Ops::Normed input =
      ops_.AddNorm(stream.delta.defined() ? stream.delta : stream.base,
                   stream.delta.defined() ? stream.base : at::Tensor(), layer.input_norm, config_.rms_norm_eps);
  tape.input = input.sum;
  tape.input_rstd = input.rstd;
  tape.input_normed = input.y;
  tape.qkv_inner = InnerProducts(layer.qkv, input.y);
  tape.qkv = Product(layer.qkv, input.y, tape.qkv_inner);
  if (config_.qk_norm) NormHeads(layer, &tape);
  ops_.Rotate(tape.qkv, config_.num_attention_heads + config_.num_key_value_heads, cos_, sin_, sequences.positions(),
              /*inverse=*/false);
  tape.attended = ops_.Attend(tape.qkv, ComputeAttention(index), sequences);
  tape.output_inner = InnerProducts(One(layer.output), tape.attended.y);
  Ops::Normed middle = ops_.AddNorm(Product(One(layer.output), tape.attended.y, tape.output_inner), tape.input,
                                    layer.post_norm, config_.rms_norm_eps);
  tape.middle = middle.sum;
  tape.middle_rstd = middle.rstd;
  tape.middle_normed = middle.y;
  if (layer.router.defined()) {
    *delta = RunExperts(layer, middle.y, &tape);
    return tape;
  }
  tape.gate_up_inner = InnerProducts(layer.gate_up, middle.y);
  tape.gate_up = Product(layer.gate_up, middle.y);
  // Their sum is made where it is read, here and in the backward pass. On a GPU in bfloat16 it is never in memory.
  tape.activation = ops_.AdaptedSwiGlu(tape.gate_up, FindTerm(layer.gate_up, tape.gate_up_inner, 0),
                                       FindTerm(layer.gate_up, tape.gate_up_inner, config_.intermediate_size));
  tape.down_inner = InnerProducts(One(layer.down), tape.activation);
  *delta = Product(One(layer.down), tape.activation, tape.down_inner);
  return tape;
}

void DecoderProgram::Trim(LayerTape* tape) const {
  if (recompute_ == Recompute::kFull) {
    LayerTape kept;
    kept.input = tape->input;
    *tape = std::move(kept);
  } else if (recompute_ == Recompute::kSelective) {
    tape->input_normed = tape->middle_normed = tape->activation = at::Tensor();
  } else if (is_frozen()) {
    tape->activation = at::Tensor();  // only the gradient of down's weight would be made from it
  }
}

absl::StatusOr<at::Tensor> DecoderProgram::Forward(UnitAccess& weights, const at::Tensor& ids,
                                                   const PackedSequences& sequences, Tape* tape) const {
  const TransformerWeights& views = weights.views();
  if (is_frozen()) SYNCOPATE_RETURN_IF_ERROR(weights.Acquire(adapter_unit()));
  SYNCOPATE_RETURN_IF_ERROR(weights.Acquire(FlatShards::kEmbeddings));
  // The next unit is gathered while this one computes. What is expected must come in the order of use, or the two
  // buffers of layers would be taken from under each other.
  SYNCOPATE_RETURN_IF_ERROR(weights.Expect(FlatShards::kEmbeddings + 1));
  Stream stream{at::embedding(views.tokens, ids), {}};
  if (config_.learned_positions) stream.delta = at::embedding(views.positions, sequences.positions());
  SYNCOPATE_RETURN_IF_ERROR(weights.Release(FlatShards::kEmbeddings));
  for (size_t i = 0; i < views.layers.size(); ++i) {
    const int unit = FlatShards::LayerUnit(static_cast<int64_t>(i));
    SYNCOPATE_RETURN_IF_ERROR(weights.Acquire(unit));
    SYNCOPATE_RETURN_IF_ERROR(weights.Expect(unit + 1));
    at::Tensor delta;
    LayerTape ran = RunLayer(i, views.layers[i], stream, sequences, &delta);
    SYNCOPATE_RETURN_IF_ERROR(weights.Release(unit));
    stream = {ran.middle, delta};
    if (tape == nullptr) continue;
    Trim(&ran);
    tape->layers.push_back(std::move(ran));
  }
  SYNCOPATE_RETURN_IF_ERROR(weights.Acquire(output_unit()));
  Ops::Normed output = ops_.AddNorm(stream.delta, stream.base, views.norm, config_.rms_norm_eps);
  SYNCOPATE_RETURN_IF_ERROR(weights.Release(output_unit()));
  if (is_frozen()) SYNCOPATE_RETURN_IF_ERROR(weights.Release(adapter_unit()));
  if (tape != nullptr) {
    tape->output = output.sum;
    tape->output_rstd = output.rstd;
  }
  return output.y;
}

at::Tensor DecoderProgram::Forward(const TransformerWeights& weights, const at::Tensor& ids,
                                   const PackedSequences& sequences, Tape* tape) const {
  WholeUnits whole(weights);
  return Forward(whole, ids, sequences, tape).value();  // no unit of them can fail
}

at::Tensor DecoderProgram::BackwardLayer(size_t index, const LayerWeights& layer, const LayerTape& tape,
                                         const PackedSequences& sequences, const at::Tensor& d,
                                         const LayerWeights& gradients) const {
  // Selective: the backward kernels make the outputs of norms and SwiGLU again on their way, for the products that need
  // them.
  const bool again = !tape.middle_normed.defined();
  const bool routed = layer.router.defined();
  Ops::SwiGluGradient mlp;
  ExpertGradients experts;
  if (routed) {
    experts = ExpertsBackward(layer, tape, d, gradients);
  } else {
    // The pass over dgate_up that makes it also makes the gradients of adapters that need it, or the activation.
    const int64_t up = config_.intermediate_size;
    Ops::SwiGluAdapters adapters{.gate = FindTerm(layer.gate_up, tape.gate_up_inner, 0),
                                 .up = FindTerm(layer.gate_up, tape.gate_up_inner, up),
                                 .dy = {},
                                 .gate_outer = FindOuterGradient(layer.gate_up, gradients.gate_up, 0),
                                 .up_outer = FindOuterGradient(layer.gate_up, gradients.gate_up, up),
                                 .dy_a = {}};
    if (!layer.down.adapters.empty()) {
      adapters.dy = {InnerGradients(One(layer.down), d)[0], layer.down.adapters[0].a.t()};
      adapters.dy_a = gradients.down.adapters[0].a;
    }
    const bool needs_y = again && gradients.down.weight.defined();
    mlp = ops_.AdaptedSwiGluBackward(at::mm(d, layer.down.weight), tape.gate_up, adapters, needs_y);
    AddGradients(ops_, One(layer.down), One(gradients.down), d, again ? mlp.y : tape.activation, {tape.down_inner, {}});
    mlp.y = at::Tensor();
  }
  Inner gate_up_inner;
  if (!routed) gate_up_inner.gradients = InnerGradients(layer.gate_up, mlp.dgate_up);
  Ops::NormGradient middle =
      ops_.AddNormBackward(routed ? experts.dx : InputGradient(layer.gate_up, mlp.dgate_up, gate_up_inner.gradients),
                           tape.middle, tape.middle_rstd, layer.post_norm, d, gradients.post_norm, again);
  const at::Tensor& middle_normed = again ? middle.y : tape.middle_normed;
  if (routed) {
    AddExpertGradients(layer, tape, experts, middle_normed, gradients);
  } else {
    AddGradients(ops_, layer.gate_up, gradients.gate_up, mlp.dgate_up, middle_normed, gate_up_inner);
  }
  mlp = {};
  experts = {};

  // The gradient of the stream reaches attention's output as it is: a residual connection copies it.
  const Inner output_inner{tape.output_inner, InnerGradients(One(layer.output), middle.dsum)};
  AddGradients(ops_, One(layer.output), One(gradients.output), middle.dsum, tape.attended.y, output_inner);
  at::Tensor dqkv = ops_.AttendBackward(InputGradient(One(layer.output), middle.dsum, output_inner.gradients), tape.qkv,
                                        tape.attended, ComputeAttention(index), sequences);
  ops_.Rotate(dqkv, config_.num_attention_heads + config_.num_key_value_heads, cos_, sin_, sequences.positions(),
              /*inverse=*/true);
  if (config_.qk_norm) NormHeadsBackward(layer, tape, gradients, dqkv);
  const Inner qkv_inner{tape.qkv_inner, InnerGradients(layer.qkv, dqkv)};
  if (index == 0 && is_frozen()) {
    // Nothing below the first layer is trained: the gradient of its input is not made.
    const at::Tensor x =
        again ? ops_.AddNorm(tape.input, {}, layer.input_norm, config_.rms_norm_eps).y : tape.input_normed;
    AddGradients(ops_, layer.qkv, gradients.qkv, dqkv, x, qkv_inner);
    return {};
  }
  Ops::NormGradient input =
      ops_.AddNormBackward(InputGradient(layer.qkv, dqkv, qkv_inner.gradients), tape.input, tape.input_rstd,
                           layer.input_norm, middle.dsum, gradients.input_norm, again);
  AddGradients(ops_, layer.qkv, gradients.qkv, dqkv, again ? input.y : tape.input_normed, qkv_inner);
  return input.dsum;
}

absl::Status DecoderProgram::Backward(UnitAccess& weights, const at::Tensor& ids, const PackedSequences& sequences,
                                      const at::Tensor& dhidden, Tape* tape, UnitAccess& gradients) const {
  const TransformerWeights& views = weights.views();
  const TransformerWeights& into = gradients.views();
  if (is_frozen()) {
    SYNCOPATE_RETURN_IF_ERROR(weights.Acquire(adapter_unit()));
    SYNCOPATE_RETURN_IF_ERROR(gradients.Acquire(adapter_unit()));
  }
  SYNCOPATE_RETURN_IF_ERROR(weights.Acquire(output_unit()));
  SYNCOPATE_RETURN_IF_ERROR(gradients.Acquire(output_unit()));
  at::Tensor d =
      ops_.AddNormBackward(dhidden, tape->output, tape->output_rstd, views.norm, {}, into.norm, /*wanted=*/false).dsum;
  SYNCOPATE_RETURN_IF_ERROR(gradients.Release(output_unit()));
  SYNCOPATE_RETURN_IF_ERROR(weights.Release(output_unit()));
  // Each part of the tape is freed as soon as it has been used: the tape is the largest thing in memory.
  tape->output = at::Tensor();
  for (size_t i = views.layers.size(); i-- > 0;) {
    const int unit = FlatShards::LayerUnit(static_cast<int64_t>(i));
    SYNCOPATE_RETURN_IF_ERROR(weights.Acquire(unit));
    if (i > 0) SYNCOPATE_RETURN_IF_ERROR(weights.Expect(unit - 1));
    SYNCOPATE_RETURN_IF_ERROR(gradients.Acquire(unit));
    LayerTape layer = std::move(tape->layers[i]);
    tape->layers.pop_back();
    if (recompute_ == Recompute::kFull) {
      at::Tensor delta;
      // Only the layer's input was kept. The same operations on the same numbers give the same bits.
      layer = RunLayer(i, views.layers[i], {layer.input, {}}, sequences, &delta);
    }
    d = BackwardLayer(i, views.layers[i], layer, sequences, d, into.layers[i]);
    SYNCOPATE_RETURN_IF_ERROR(gradients.Release(unit));
    SYNCOPATE_RETURN_IF_ERROR(weights.Release(unit));
  }
  if (is_frozen()) {
    SYNCOPATE_RETURN_IF_ERROR(gradients.Release(adapter_unit()));
    return weights.Release(adapter_unit());
  }
  SYNCOPATE_RETURN_IF_ERROR(gradients.Acquire(FlatShards::kEmbeddings));
  ops_.AddEmbeddingGradient(into.tokens, ids, d);
  if (config_.learned_positions) ops_.AddEmbeddingGradient(into.positions, sequences.positions(), d);
  return gradients.Release(FlatShards::kEmbeddings);
}

void DecoderProgram::Backward(const TransformerWeights& weights, const at::Tensor& ids,
                              const PackedSequences& sequences, const at::Tensor& dhidden, Tape* tape,
                              const TransformerWeights& gradients) const {
  WholeUnits whole(weights), into(gradients);
  const absl::Status status = Backward(whole, ids, sequences, dhidden, tape, into);
  SYNCOPATE_CHECK(status.ok());  // no unit of them can fail
}

// Makes the calls on units that Forward and Backward make, in the same order: other ranks wait for them. A test
// compares the calls.
absl::Status DecoderProgram::Accompany(UnitAccess& weights, UnitAccess* gradients) const {
  auto ask = [](UnitAccess& units, int unit, int next) -> absl::Status {
    SYNCOPATE_RETURN_IF_ERROR(units.Acquire(unit));
    if (next >= 0) SYNCOPATE_RETURN_IF_ERROR(units.Expect(next));
    return units.Release(unit);
  };
  constexpr int kNone = -1;
  if (is_frozen()) SYNCOPATE_RETURN_IF_ERROR(weights.Acquire(adapter_unit()));
  for (int unit = 0; unit <= output_unit(); ++unit) {
    SYNCOPATE_RETURN_IF_ERROR(ask(weights, unit, unit < output_unit() ? unit + 1 : kNone));
  }
  if (is_frozen()) SYNCOPATE_RETURN_IF_ERROR(weights.Release(adapter_unit()));
  if (gradients == nullptr) return absl::OkStatus();
  if (is_frozen()) {
    SYNCOPATE_RETURN_IF_ERROR(weights.Acquire(adapter_unit()));
    SYNCOPATE_RETURN_IF_ERROR(gradients->Acquire(adapter_unit()));
  }
  for (int unit = output_unit(); unit > FlatShards::kEmbeddings; --unit) {
    const bool is_last = unit == output_unit() || unit == FlatShards::kEmbeddings + 1;
    SYNCOPATE_RETURN_IF_ERROR(ask(weights, unit, is_last ? kNone : unit - 1));
    SYNCOPATE_RETURN_IF_ERROR(ask(*gradients, unit, kNone));
  }
  if (!is_frozen()) return ask(*gradients, FlatShards::kEmbeddings, kNone);
  SYNCOPATE_RETURN_IF_ERROR(gradients->Release(adapter_unit()));
  return weights.Release(adapter_unit());
}

}  // namespace syncopate::trainer
