#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "model/host_rows.h"
#include "model/packed_sequences.h"

namespace syncopate::model {

// The operations of a decoder other than plain matrix products, each with its backward pass, and the update of its
// weights, as functions of tensors: no autograd. R rows, D hidden, d head_dim, H query heads, K key/value heads, V
// vocabulary. Activations have the dtype of the weights (float32, or bfloat16 on a GPU); sums inside an operation,
// statistics and gradients of weights are float32. Stateless, thread-safe; work is queued on the current stream of the
// tensors' device.
class Ops {
 public:
  virtual ~Ops() = default;

  // RMSNorm (arXiv 1910.07467) after an optional residual add.
  struct Normed {
    at::Tensor sum;   // [R, D] x + residual; x itself without one
    at::Tensor y;     // [R, D] sum * rstd, rounded to its dtype, * weight: as model::Transformer rounds
    at::Tensor rstd;  // [R] float32: 1 / sqrt(mean(sum^2) + eps)
  };
  // x [R, D]; residual [R, D] or undefined; weight [D].
  virtual Normed AddNorm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                         double eps) const = 0;
  struct NormGradient {
    at::Tensor dsum;  // [R, D] gradient of sum: through the norm, plus `passed`
    at::Tensor y;     // [R, D] bit-identical to the forward's y, for the weight gradient of the product that used it
  };
  // dy [R, D]; sum, rstd, weight as above; `passed`: gradient that reaches `sum` on another path, or undefined. Adds to
  // dweight [D] float32, unless it is undefined. `wanted`: compute y; else it is undefined.
  virtual NormGradient AddNormBackward(const at::Tensor& dy, const at::Tensor& sum, const at::Tensor& rstd,
                                       const at::Tensor& weight, const at::Tensor& passed, const at::Tensor& dweight,
                                       bool wanted) const = 0;

  // Rotary embedding (arXiv 2104.09864) in the halves convention, in place on the first `heads` heads of each row of x
  // [R, at least heads * d]. cos, sin [positions, d / 2] float32; positions [R] int64. `inverse` rotates back, which is
  // the backward pass.
  virtual void Rotate(const at::Tensor& x, int64_t heads, const at::Tensor& cos, const at::Tensor& sin,
                      const at::Tensor& positions, bool inverse) const = 0;

  // gate_up [R, 2 F] -> silu(gate) * up [R, F] (SwiGLU, arXiv 2002.05202), both factors rounded to its dtype.
  virtual at::Tensor SwiGlu(const at::Tensor& gate_up) const = 0;
  struct SwiGluGradient {
    at::Tensor dgate_up;  // [R, 2 F]
    at::Tensor y;         // [R, F] the forward's y, for the weight gradient of the next product
  };
  // dy [R, F]. `wanted`: compute y; else it is undefined.
  virtual SwiGluGradient SwiGluBackward(const at::Tensor& dy, const at::Tensor& gate_up, bool wanted) const = 0;

  // scale * inner outer^T, which an adapter adds to the columns of a product. The sum is rounded to the product's
  // dtype.
  struct LowRank {
    at::Tensor inner;  // [R, rank], in the dtype of the product; its rows may be further apart. Undefined: nothing
    at::Tensor outer;  // [columns, rank], in that dtype
    double scale = 1;
  };
  // SwiGlu() of gate_up plus `gate` in its first F columns and `up` in the others. On a GPU, in bfloat16, the sum is never
  // in memory.
  virtual at::Tensor AdaptedSwiGlu(const at::Tensor& gate_up, const LowRank& gate, const LowRank& up) const;
  // The adapters around SwiGLU: those of gate and up, and that of the product which reads y, whose part of dy is a term
  // too: `inner` is the gradient of its inner product, `outer` its transposed a.
  struct SwiGluAdapters {
    LowRank gate, up, dy;
    // float32, undefined if not wanted:
    at::Tensor gate_outer, up_outer;  // [F, rank]: the gradient of `outer` is added
    at::Tensor dy_a;                  // [rank, F]: the gradient of a, inner^T y, is added
  };
  // SwiGluBackward() of dy plus its term and of the same sum as above. May overwrite dy and gate_up, and dgate_up may
  // have the memory of gate_up.
  virtual SwiGluGradient AdaptedSwiGluBackward(const at::Tensor& dy, const at::Tensor& gate_up,
                                               const SwiGluAdapters& adapters, bool wanted) const;

  // Causal attention inside each sequence; scores are scaled by 1 / sqrt(d).
  struct AttentionShape {
    int64_t heads = 0;
    int64_t kv_heads = 0;
    int64_t window = 0;  // rows that a row attends to, itself and those before it; 0: itself and all before it
  };
  struct Attended {
    at::Tensor y;                   // [T, H * d]
    std::vector<at::Tensor> stats;  // other tensors that the backward pass needs
  };
  // qkv [T, (H + 2 K) * d], rotated.
  virtual Attended Attend(const at::Tensor& qkv, const AttentionShape& shape,
                          const PackedSequences& sequences) const = 0;
  // Returns the gradient of qkv, which has its shape.
  virtual at::Tensor AttendBackward(const at::Tensor& dy, const at::Tensor& qkv, const Attended& forward,
                                    const AttentionShape& shape, const PackedSequences& sequences) const = 0;

  // float32 results for each row of logits [R, V], where z = logits / temperature. Rows may be further apart than V.
  struct HeadRows {
    at::Tensor logprob;          // [R] log softmax(z)[target]
    at::Tensor entropy;          // [R] nats
    at::Tensor log_sum_exp;      // [R] of z
    at::Tensor top_probability;  // [R] the largest of softmax(z)
  };
  // targets [R] int64.
  virtual HeadRows Head(const at::Tensor& logits, const at::Tensor& targets, double temperature) const = 0;
  // The loss's gradient with respect to the logits, in dtype `to`, from those with respect to logprob and entropy ([R]
  // float32 each; dentropy may be undefined if the loss has no entropy term). Its rows are as far apart as those of
  // logits. Overwrites logits if they have that dtype.
  virtual at::Tensor HeadBackward(const at::Tensor& logits, const at::Tensor& targets, const HeadRows& rows,
                                  const at::Tensor& dlogprob, const at::Tensor& dentropy, double temperature,
                                  at::ScalarType to) const = 0;

  // dweight [N, M] float32 += dy^T x for dy [R, N], x [R, M]; dbias [N] float32 += column sums of dy.
  virtual void AddWeightGradient(const at::Tensor& dweight, const at::Tensor& dy, const at::Tensor& x) const = 0;
  virtual void AddBiasGradient(const at::Tensor& dbias, const at::Tensor& dy) const = 0;
  // dtable [V, D] float32: row ids[r] += dx[r] for ids [R] int64, dx [R, D].
  virtual void AddEmbeddingGradient(const at::Tensor& dtable, const at::Tensor& ids, const at::Tensor& dx) const = 0;

  // One AdamW update (Loshchilov & Hutter, arXiv 1711.05101; bias correction as in torch.optim.AdamW).
  struct AdamW {
    double learning_rate = 0;
    double beta1 = 0;
    double beta2 = 0;
    double eps = 0;
    double weight_decay = 0;
    double correction1 = 1;  // 1 - beta1^t
    double correction2 = 1;  // 1 - beta2^t
  };
  // Flat tensors of N elements, a multiple of 4: float32 but for `copy`, which gets the new parameters in bfloat16 and
  // may be undefined.
  struct AdamWTensors {
    at::Tensor parameters, first_moment, second_moment, gradients, copy;
  };
  // `factor` [] float32, on the device, multiplies the gradients. If it is not finite, nothing changes. Returns the sum
  // of the squares of the parameters' changes before they are rounded, [] float64 on the device; 0 if nothing changes.
  virtual at::Tensor UpdateByAdamW(const AdamW& update, const at::Tensor& factor,
                                   const AdamWTensors& tensors) const = 0;

  // Neighbouring words of 8 bytes that belong to one digest (base/digest.h).
  struct DigestRun {
    int64_t begin = 0;  // index of the first word in `words`
    int64_t count = 0;
    int64_t position = 0;  // index of the first word in the digested bytes, from 0
    int64_t sum = 0;       // index in `sums`
  };
  // words [W] int64, or [2 W] bfloat16, whose words are those of the same numbers in float32; sums [S] int64: each run
  // adds Mix64(word + (position + 1) * kDigestStride) of all its words to its sum, modulo 2^64.
  virtual void AddDigestSums(const at::Tensor& words, const std::vector<DigestRun>& runs,
                             const at::Tensor& sums) const = 0;

 protected:
  // Adds the gradients that `adapters` asks for. made.y must be there if that of a is among them.
  void AddAdapterGradients(const SwiGluAdapters& adapters, const SwiGluGradient& made) const;
};

// The reference implementation, by ATen operators, on any device that ATen supports.
const Ops& AtenOps();
// The implementation for float32 on the CPU, by loops over rows (host_rows.h); it forwards all other calls to
// AtenOps().
const Ops& HostOps();
std::unique_ptr<const Ops> MakeHostOps(const HostRows& rows);  // `rows` must outlive it

// The fastest implementation for `device` that this binary links: on a GPU the kernels of model/cuda/, which a build
// without CUDA does not have; else HostOps(). `deterministic`: a repeated operation is bit-identical, in any process on
// a GPU of the same kind with the same libraries. HostOps() always is; on a GPU the backward passes of attention and of
// the embedding are slower for it.
const Ops& OpsFor(at::Device device, bool deterministic = false);

}  // namespace syncopate::model
