#include <cmath>

#include "base/mix64.h"
#include "model/ops.h"

namespace syncopate::model {
namespace {

at::Tensor Wide(const at::Tensor& x) { return x.to(at::kFloat); }

// Mix64 of each number, in place. ATen has no unsigned 64-bit arithmetic: sums and products of int64 wrap to the same
// bits, and a mask turns the arithmetic shift into a logical one.
void MixInPlace(at::Tensor& x) {
  constexpr int64_t kLow31 = 0x7fffffff;  // the bits that remain of 64 after a shift by 33
  auto fold = [&x] { x.bitwise_xor_(at::bitwise_right_shift(x, 33).bitwise_and_(kLow31)); };
  fold();
  x.mul_(static_cast<int64_t>(0xff51afd7ed558ccdULL));
  fold();
  x.mul_(static_cast<int64_t>(0xc4ceb9fe1a85ec53ULL));
  fold();
}

// Adds `term` to `product`, in place.
void AddTo(const at::Tensor& product, const Ops::LowRank& term) {
  if (!term.inner.defined()) return;
  at::Tensor(product).addmm_(term.inner, term.outer.t(), /*beta=*/1, /*alpha=*/term.scale);
}

void AddToHalves(const at::Tensor& gate_up, const Ops::LowRank& gate, const Ops::LowRank& up) {
  const int64_t width = gate_up.size(1) / 2;
  AddTo(gate_up.narrow(1, 0, width), gate);
  AddTo(gate_up.narrow(1, width, width), up);
}

class OpsByAten final : public Ops {
 public:
  Normed AddNorm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps) const override {
    Normed result;
    result.sum = residual.defined() ? x + residual : x;
    at::Tensor wide = Wide(result.sum);
    result.rstd = at::rsqrt(at::mean(wide * wide, {-1}) + eps);
    result.y = (wide * result.rstd.unsqueeze(-1)).to(x.scalar_type()) * weight;
    return result;
  }

  // With n = sum * rstd and g = dy * weight: dsum = rstd * (g - n * mean(g n)).
  NormGradient AddNormBackward(const at::Tensor& dy, const at::Tensor& sum, const at::Tensor& rstd,
                               const at::Tensor& weight, const at::Tensor& passed, const at::Tensor& dweight,
                               bool wanted) const override {
    at::Tensor scale = rstd.unsqueeze(-1);
    at::Tensor normed = Wide(sum) * scale;
    at::Tensor wide = Wide(dy);
    if (dweight.defined()) dweight.add_((wide * normed).sum(0));
    at::Tensor g = wide * Wide(weight);
    at::Tensor dsum = scale * (g - normed * (g * normed).mean({-1}, /*keepdim=*/true));
    if (passed.defined()) dsum = dsum + Wide(passed);
    return {dsum.to(sum.scalar_type()), wanted ? normed.to(sum.scalar_type()) * weight : at::Tensor()};
  }

  void Rotate(const at::Tensor& x, int64_t heads, const at::Tensor& cos, const at::Tensor& sin,
              const at::Tensor& positions, bool inverse) const override {
    const int64_t half = cos.size(1);
    at::Tensor view = x.narrow(1, 0, heads * 2 * half).unflatten(1, {heads, 2 * half});
    at::Tensor c = cos.index_select(0, positions).unsqueeze(1), s = sin.index_select(0, positions).unsqueeze(1);
    if (inverse) s = -s;
    at::Tensor first = Wide(view.narrow(-1, 0, half)), second = Wide(view.narrow(-1, half, half));
    at::Tensor turned = at::cat({first * c - second * s, second * c + first * s}, -1);
    view.copy_(turned);
  }

  at::Tensor SwiGlu(const at::Tensor& gate_up) const override {
    const int64_t width = gate_up.size(1) / 2;
    return at::silu(gate_up.narrow(1, 0, width)) * gate_up.narrow(1, width, width);
  }

  // silu'(g) = s (1 + g (1 - s)), s = sigmoid(g).
  SwiGluGradient SwiGluBackward(const at::Tensor& dy, const at::Tensor& gate_up, bool wanted) const override {
    const int64_t width = gate_up.size(1) / 2;
    at::Tensor gate = Wide(gate_up.narrow(1, 0, width)), up = Wide(gate_up.narrow(1, width, width)), wide = Wide(dy);
    at::Tensor sigmoid = at::sigmoid(gate), silu = gate * sigmoid;
    at::Tensor dgate = wide * up * sigmoid * (1 + gate * (1 - sigmoid));
    return {at::cat({dgate, wide * silu}, 1).to(gate_up.scalar_type()), wanted ? SwiGlu(gate_up) : at::Tensor()};
  }

  Attended Attend(const at::Tensor& qkv, const AttentionShape& shape, const PackedSequences& sequences) const override {
    const Rectangles r = Split(qkv, shape.heads, shape.kv_heads, sequences);
    at::Tensor y = at::matmul(Probabilities(r, shape.window), r.v);
    return {sequences.FromRectangle(y).to(qkv.scalar_type()), {}};
  }

  // With P the probabilities and D = row sums of dy * y: dS = P (dy v^T - D), dq = dS k, dk = dS^T q, dv = P^T dy; dk
  // and dv are summed over the query heads that share a key and value.
  at::Tensor AttendBackward(const at::Tensor& dy, const at::Tensor& qkv, const Attended& forward,
                            const AttentionShape& shape, const PackedSequences& sequences) const override {
    const Rectangles r = Split(qkv, shape.heads, shape.kv_heads, sequences);
    at::Tensor p = Probabilities(r, shape.window);
    at::Tensor rows = Wide(sequences.ToRectangle(dy, shape.heads)) * InsideMask(sequences, dy);
    at::Tensor y = Wide(sequences.ToRectangle(forward.y, shape.heads));
    at::Tensor dscores = p * (at::matmul(rows, r.v.transpose(-1, -2)) - (rows * y).sum(-1, /*keepdim=*/true)) * r.scale;
    at::Tensor dq = at::matmul(dscores, r.k);
    at::Tensor dk = SumGroups(at::matmul(dscores.transpose(-1, -2), r.q), shape.kv_heads);
    at::Tensor dv = SumGroups(at::matmul(p.transpose(-1, -2), rows), shape.kv_heads);
    return at::cat({sequences.FromRectangle(dq), sequences.FromRectangle(dk), sequences.FromRectangle(dv)}, 1)
        .to(qkv.scalar_type());
  }

  HeadRows Head(const at::Tensor& logits, const at::Tensor& targets, double temperature) const override {
    at::Tensor z = Wide(logits) / temperature;
    HeadRows rows;
    rows.log_sum_exp = at::logsumexp(z, {-1});
    at::Tensor logprobs = z - rows.log_sum_exp.unsqueeze(-1);
    rows.logprob = logprobs.gather(1, targets.unsqueeze(1)).squeeze(1);
    rows.entropy = -(logprobs.exp() * logprobs).sum(-1);
    rows.top_probability = at::amax(logprobs, {-1}).exp();
    return rows;
  }

  // d logprob / dz_j = [j = target] - p_j; d entropy / dz_j = -p_j (log p_j + entropy).
  at::Tensor HeadBackward(const at::Tensor& logits, const at::Tensor& targets, const HeadRows& rows,
                          const at::Tensor& dlogprob, const at::Tensor& dentropy, double temperature,
                          at::ScalarType to) const override {
    at::Tensor logprobs = Wide(logits) / temperature - rows.log_sum_exp.unsqueeze(-1);
    at::Tensor p = logprobs.exp();
    at::Tensor dz = p * -dlogprob.unsqueeze(-1);
    dz.scatter_add_(1, targets.unsqueeze(1), dlogprob.unsqueeze(1));
    if (dentropy.defined()) dz = dz - p * (logprobs + rows.entropy.unsqueeze(-1)) * dentropy.unsqueeze(-1);
    dz = dz / temperature;
    return to == logits.scalar_type() ? logits.copy_(dz) : dz.to(to);
  }

  void AddWeightGradient(const at::Tensor& dweight, const at::Tensor& dy, const at::Tensor& x) const override {
    dweight.addmm_(Wide(dy).t(), Wide(x));
  }
  void AddBiasGradient(const at::Tensor& dbias, const at::Tensor& dy) const override { dbias.add_(Wide(dy).sum(0)); }
  void AddEmbeddingGradient(const at::Tensor& dtable, const at::Tensor& ids, const at::Tensor& dx) const override {
    dtable.index_add_(0, ids, Wide(dx));
  }

  at::Tensor UpdateByAdamW(const AdamW& update, const at::Tensor& factor, const AdamWTensors& tensors) const override {
    const double scale = factor.item<double>();
    if (!std::isfinite(scale)) return at::zeros({}, tensors.parameters.options().dtype(at::kDouble));
    // Updates in place: the tensors' handles are const, their data are not.
    at::Tensor p = tensors.parameters, m = tensors.first_moment, v = tensors.second_moment, g = tensors.gradients;
    if (scale != 1) g.mul_(scale);
    at::Tensor change;  // negated
    if (update.weight_decay != 0) {
      change = p * (update.learning_rate * update.weight_decay);
      p.mul_(1.0 - update.learning_rate * update.weight_decay);
    }
    m.lerp_(g, 1.0 - update.beta1);
    v.mul_(update.beta2).addcmul_(g, g, 1.0 - update.beta2);
    at::Tensor denominator = (v.sqrt() / std::sqrt(update.correction2)).add_(update.eps);
    p.addcdiv_(m, denominator, -update.learning_rate / update.correction1);
    if (tensors.copy.defined()) tensors.copy.copy_(p);
    const double rate = update.learning_rate / update.correction1;
    change = change.defined() ? change.addcdiv_(m, denominator, rate) : at::div(m, denominator).mul_(rate);
    return at::norm(change, 2, at::kDouble).square();
  }

  void AddDigestSums(const at::Tensor& words, const std::vector<DigestRun>& runs,
                     const at::Tensor& sums) const override {
    const bool is_rounded = words.scalar_type() == at::kBFloat16;
    for (const DigestRun& run : runs) {
      const at::Tensor read = is_rounded ? Wide(words.narrow(0, 2 * run.begin, 2 * run.count)).view(at::kLong)
                                         : words.narrow(0, run.begin, run.count);
      at::Tensor mixed = at::arange(run.position + 1, run.position + run.count + 1, read.options());
      mixed.mul_(static_cast<int64_t>(kDigestStride)).add_(read);
      MixInPlace(mixed);
      sums.narrow(0, run.sum, 1).add_(mixed.sum());
    }
  }

 private:
  // [sequences, H, longest, d] float32; k and v repeated for the query heads that share them.
  struct Rectangles {
    at::Tensor q, k, v;
    double scale = 1;
  };

  static Rectangles Split(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, const PackedSequences& sequences) {
    const int64_t head_dim = qkv.size(1) / (heads + 2 * kv_heads), group = heads / kv_heads;
    at::Tensor all = Wide(sequences.ToRectangle(qkv, heads + 2 * kv_heads));
    return {all.narrow(1, 0, heads), all.narrow(1, heads, kv_heads).repeat_interleave(group, 1),
            all.narrow(1, heads + kv_heads, kv_heads).repeat_interleave(group, 1),
            1.0 / std::sqrt(static_cast<double>(head_dim))};
  }

  static at::Tensor Probabilities(const Rectangles& r, int64_t window) {
    at::Tensor scores = at::matmul(r.q, r.k.transpose(-1, -2)) * r.scale;
    const int64_t longest = scores.size(-1);
    at::Tensor hidden = at::ones({longest, longest}, scores.options().dtype(at::kBool)).triu(1);
    // Row t sees rows t - window + 1 to t.
    if (window > 0) hidden = hidden.logical_or(at::ones_like(hidden).tril(-window));
    return at::softmax(scores.masked_fill(hidden, -INFINITY), -1);
  }

  // 1 for cells that are rows, 0 for padding, whose gradient must be dropped.
  static at::Tensor InsideMask(const PackedSequences& sequences, const at::Tensor& like) {
    at::Tensor lengths = at::tensor(sequences.lengths(), at::kLong).to(like.device());
    at::Tensor cells = at::arange(sequences.longest(), lengths.options());
    return cells.unsqueeze(0).lt(lengths.unsqueeze(1)).to(at::kFloat).unsqueeze(1).unsqueeze(-1);
  }

  static at::Tensor SumGroups(const at::Tensor& heads, int64_t kv_heads) {
    return heads.unflatten(1, {kv_heads, heads.size(1) / kv_heads}).sum(2);
  }
};

}  // namespace

at::Tensor Ops::AdaptedSwiGlu(const at::Tensor& gate_up, const LowRank& gate, const LowRank& up) const {
  if (!gate.inner.defined() && !up.inner.defined()) return SwiGlu(gate_up);
  const at::Tensor sum = gate_up.clone();
  AddToHalves(sum, gate, up);
  return SwiGlu(sum);
}

Ops::SwiGluGradient Ops::AdaptedSwiGluBackward(const at::Tensor& dy, const at::Tensor& gate_up,
                                               const SwiGluAdapters& adapters, bool wanted) const {
  AddTo(dy, adapters.dy);
  AddToHalves(gate_up, adapters.gate, adapters.up);
  const SwiGluGradient made = SwiGluBackward(dy, gate_up, wanted || adapters.dy_a.defined());
  AddAdapterGradients(adapters, made);
  return made;
}

void Ops::AddAdapterGradients(const SwiGluAdapters& adapters, const SwiGluGradient& made) const {
  const int64_t width = made.dgate_up.size(1) / 2;
  auto add = [&](const at::Tensor& outer, const LowRank& term, int64_t begin) {
    if (outer.defined()) AddWeightGradient(outer, made.dgate_up.narrow(1, begin, width), term.inner.mul(term.scale));
  };
  add(adapters.gate_outer, adapters.gate, 0);
  add(adapters.up_outer, adapters.up, width);
  if (adapters.dy_a.defined()) AddWeightGradient(adapters.dy_a, adapters.dy.inner, made.y);
}

const Ops& AtenOps() {
  static const OpsByAten ops;
  return ops;
}

}  // namespace syncopate::model
