#include "tests/support/op_cases.h"

namespace syncopate::testing {
namespace {

// Draws numbers in sequence; every implementation gets the same numbers, rounded to its dtype.
class Draws {
 public:
  Draws(at::Device device, at::ScalarType dtype) : device_(device), dtype_(dtype) { at::manual_seed(11); }
  at::Tensor Normal(at::IntArrayRef shape, double scale = 1) {
    return (at::randn(shape, at::kFloat) * scale).to(at::kBFloat16).to(device_, dtype_);
  }
  at::Tensor Wide(at::IntArrayRef shape) { return at::randn(shape, at::kFloat).to(device_); }
  at::Tensor Below(int64_t bound, int64_t count) { return at::randint(bound, {count}, at::kLong).to(device_); }

 private:
  const at::Device device_;
  const at::ScalarType dtype_;
};

}  // namespace

std::vector<at::Tensor> RunAllOps(const model::Ops& ops, const OpCase& one, at::Device device, at::ScalarType dtype) {
  Draws draws(device, dtype);
  const model::PackedSequences sequences(one.lengths, device);
  const int64_t rows = sequences.rows(), all_heads = one.heads + 2 * one.kv_heads;
  std::vector<at::Tensor> results;
  auto keep = [&results](std::initializer_list<at::Tensor> tensors) {
    for (const at::Tensor& tensor : tensors) results.push_back(tensor.clone());
  };

  at::Tensor x = draws.Normal({rows, one.columns}), residual = draws.Normal({rows, one.columns});
  at::Tensor weight = draws.Normal({one.columns}), dy = draws.Normal({rows, one.columns});
  at::Tensor dweight = draws.Wide({one.columns});
  model::Ops::Normed normed = ops.AddNorm(x, residual, weight, 1e-6);
  model::Ops::NormGradient back =
      ops.AddNormBackward(dy, normed.sum, normed.rstd, weight, residual, dweight, /*wanted=*/true);
  keep({normed.sum, normed.y, normed.rstd, back.dsum, back.y, dweight, ops.AddNorm(x, {}, weight, 1e-6).y});

  at::Tensor qkv = draws.Normal({rows, all_heads * one.head_dim});
  at::Tensor angle = draws.Wide({16, one.head_dim / 2});
  const int64_t rotated = one.heads + one.kv_heads;
  at::Tensor positions = draws.Below(16, rows);
  ops.Rotate(qkv, rotated, angle.cos(), angle.sin(), positions, false);
  keep({qkv});
  model::Ops::Attended attended = ops.Attend(qkv, {one.heads, one.kv_heads}, sequences);
  at::Tensor dattended = draws.Normal({rows, one.heads * one.head_dim});
  at::Tensor dqkv = ops.AttendBackward(dattended, qkv, attended, {one.heads, one.kv_heads}, sequences);
  keep({attended.y, dqkv});
  ops.Rotate(dqkv, rotated, angle.cos(), angle.sin(), positions, true);
  keep({dqkv});

  at::Tensor gate_up = draws.Normal({rows, 2 * one.width}), dactivation = draws.Normal({rows, one.width});
  model::Ops::SwiGluGradient mlp = ops.SwiGluBackward(dactivation, gate_up, /*wanted=*/true);
  keep({ops.SwiGlu(gate_up), mlp.dgate_up, mlp.y});

  at::Tensor logits = draws.Normal({rows, one.vocab}, 2), targets = draws.Below(one.vocab, rows);
  model::Ops::HeadRows head = ops.Head(logits, targets, 0.7);
  keep({head.logprob, head.entropy, head.log_sum_exp, head.top_probability});
  at::Tensor dlogprob = draws.Wide({rows}), dentropy = draws.Wide({rows});
  keep({ops.HeadBackward(logits.clone(), targets, head, dlogprob, dentropy, 0.7, dtype),
        ops.HeadBackward(logits.clone(), targets, head, dlogprob, {}, 0.7, dtype)});

  at::Tensor product = draws.Wide({one.columns, one.width}), bias = draws.Wide({one.columns});
  at::Tensor table = draws.Wide({one.vocab, one.columns});
  ops.AddWeightGradient(product, dy, dactivation);
  ops.AddBiasGradient(bias, dy);
  ops.AddEmbeddingGradient(table, targets, dy);
  keep({product, bias, table});

  const model::Ops::NormGradient frozen = ops.AddNormBackward(dy, x, normed.rstd, weight, residual, {}, true);
  keep({frozen.dsum, frozen.y});

  // Ranks of one and of several parts of a kernel; rows of `inner` that are further apart; a transposed `outer`.
  for (const int64_t rank : {8, 32, 40}) {
    const at::Tensor inner = draws.Normal({rows, 2 * rank}), of_dy = draws.Normal({rows, rank});
    const at::Tensor outer = draws.Normal({one.width, rank}), transposed = draws.Normal({rank, one.width});
    const model::Ops::LowRank gate{inner.narrow(1, 0, rank), outer, 0.25}, up{inner.narrow(1, rank, rank), outer, 0.5};
    for (const bool has_all : {true, false}) {
      model::Ops::SwiGluAdapters adapters{gate, {}, {of_dy, transposed.t(), 0.125}, draws.Wide({one.width, rank}),
                                          {},   {}};
      if (has_all) adapters.up = up;
      if (has_all) adapters.up_outer = draws.Wide({one.width, rank});
      if (has_all) adapters.dy_a = draws.Wide({rank, one.width});
      // With y, which a kernel without it need not make; and without, where only the gradients tell what it made.
      const auto with_y = ops.AdaptedSwiGluBackward(dactivation.clone(), gate_up.clone(), adapters, /*wanted=*/true);
      const auto without = ops.AdaptedSwiGluBackward(dactivation.clone(), gate_up.clone(), adapters, /*wanted=*/false);
      keep({ops.AdaptedSwiGlu(gate_up, gate, adapters.up), with_y.dgate_up, with_y.y, without.dgate_up,
            adapters.gate_outer});
      if (has_all) keep({adapters.up_outer, adapters.dy_a});
    }
  }
  return results;
}

}  // namespace syncopate::testing
