#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "base/manifest.h"
#include "model/model_config.h"

namespace syncopate::model {

inline at::ScalarType ToScalarType(DType dtype) { return dtype == DType::kFloat32 ? at::kFloat : at::kBFloat16; }

// A low-rank adapter of columns [begin, begin + outputs) of a linear's product: y += scale * (x a^T) b^T.
struct Adapter {
  at::Tensor a;  // [rank, in]
  at::Tensor b;  // [outputs, rank]
  int64_t begin = 0;
  double scale = 1;
};

// y = x W^T + b, and what its adapters add.
struct Linear {
  at::Tensor weight;                   // [out, in]
  at::Tensor bias;                     // [out], undefined without one
  std::vector<Adapter> adapters = {};  // all of one rank
  at::Tensor joint_a = {};  // [adapters * rank, in]: the a of all adapters, if they are neighbours in the arena
};

// Projections of the same input. If they are in the arena without a gap, one Linear with the rows of all, so that one
// call computes their product; else one Linear for each.
using JointLinear = std::vector<Linear>;

// Views of one weight arena, ready for matrix products. The views do not own the arena.
// D hidden, Q heads * head_dim, KV kv_heads * head_dim, F intermediate (of an expert, its own), V vocabulary.
struct ExpertWeights {
  JointLinear gate_up;  // [2 F, D], or twice [F, D]
  Linear down;          // [D, F]
};
struct LayerWeights {
  at::Tensor input_norm;      // [D]
  JointLinear qkv;            // [Q + 2 KV, D], or [Q, D], [KV, D], [KV, D]
  at::Tensor q_norm, k_norm;  // [head_dim], undefined without qk_norm
  Linear output;              // [D, Q]
  at::Tensor post_norm;       // [D]
  JointLinear gate_up;        // [2 F, D], or twice [F, D]
  Linear down;                // [D, F]
  // A layer of routed experts has `router` and `experts` instead of gate_up and down.
  at::Tensor router;  // [experts, D]
  std::vector<ExpertWeights> experts;
};
struct TransformerWeights {
  at::Tensor tokens;     // [V, D]
  at::Tensor positions;  // [max_position_embeddings, D], undefined without learned_positions
  std::vector<LayerWeights> layers;
  at::Tensor norm;  // [D]
  at::Tensor head;  // [V, D]; `tokens` itself when tied

  // Every distinct tensor that has memory, in wire order; an optimizer iterates over these.
  std::vector<at::Tensor> Distinct() const;
};

// Views into `arena`, a flat tensor of manifest.arena_bytes() bytes laid out by `manifest`, which must be the manifest
// of `config` in the arena's dtype. The views share the arena's storage and are separate leaves for autograd.
TransformerWeights ViewWeights(const ModelConfig& config, const Manifest& manifest, const at::Tensor& arena);

// The same weights without their adapters: the base.
TransformerWeights WithoutAdapters(TransformerWeights weights);

// x a^T of all adapters of the linear, side by side: [R, adapters * rank] in the dtype of x, to which it is rounded.
// The linear must have adapters.
at::Tensor InnerProducts(const Linear& linear, const at::Tensor& x);
// Adds to y [R, out], in place, what the linear's adapters make of x [R, in]: the product of x a^T with b is scaled and
// added to y before it is rounded.
void AddAdapters(const Linear& linear, const at::Tensor& x, const at::Tensor& y);
// Does what AddAdapters() does; `inner`: InnerProducts() of x.
void AddOuterProducts(const Linear& linear, const at::Tensor& inner, const at::Tensor& y);

// Attention over the rows of one call, which the caller of Transformer implements: a trainer attends inside packed
// sequences, an engine appends to a KV cache. R rows (tokens of any sequences), H query heads, K key/value heads, d
// head_dim.
class Attention {
 public:
  virtual ~Attention() = default;
  // q [R, H, d], k and v [R, K, d], rotated and normed, in the weights' dtype. Returns [R, H * d].
  virtual at::Tensor Attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) = 0;
};

// Sums the partial results of the ranks of a replica, each computed from its heads and its part of the feed-forward.
class PartialSums {
 public:
  virtual ~PartialSums() = default;
  // True on the one rank that adds the biases, which are replicated on all ranks.
  virtual bool adds_biases() const = 0;
  // partial [R, D] -> the sum over ranks, in its dtype, bit-identical on every rank. The implementation keeps errors;
  // the result is invalid after one.
  virtual at::Tensor Sum(const at::Tensor& partial) = 0;
};

// The decoder by operators of ATen: what an engine runs where no kernels of its own do (under InferenceMode; in float32
// on the CPU by the loops of host_rows.h), and under autograd the reference of trainer::DecoderProgram. On any device
// that ATen supports, in the dtype of the weights; norms and rotations are computed in float32. Stateless except for
// the rotary tables; const calls are thread-safe.
class Transformer {
 public:
  // `config` must be valid. Tables are made in float32 on `device`.
  Transformer(const ModelConfig& config, at::Device device);

  const ModelConfig& config() const { return config_; }
  // Rotary tables [max_position_embeddings, head_dim / 2] float32.
  at::Tensor cos() const { return cos_.narrow(1, 0, config_.head_dim / 2).contiguous(); }
  at::Tensor sin() const { return sin_.narrow(1, 0, config_.head_dim / 2).contiguous(); }

  // ids [R] int64, positions [R] int64 (each < max_position_embeddings) -> final-normed hidden states [R, D].
  // On the CPU each row of the result depends only on its own token and on the rows that `attention` returns for it, if
  // R >= kMinRows: for smaller products the BLAS uses another algorithm, which rounds differently. On a GPU the BLAS
  // chooses its algorithm by R, so that the last bits of a row may depend on the number of rows. With `sums`, `weights`
  // are this rank's slice, and config() gives this rank's numbers of heads and feed-forward columns.
  at::Tensor Forward(const TransformerWeights& weights, const at::Tensor& ids, const at::Tensor& positions,
                     Attention& attention, PartialSums* sums = nullptr) const;

  // hidden [N, D] -> logits [N, V] in float32.
  at::Tensor Logits(const TransformerWeights& weights, const at::Tensor& hidden) const;

  static constexpr int64_t kMinRows = 16;  // 4 would be enough if the BLAS uses AVX2, but not if it uses AVX-512

 private:
  at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight) const;
  at::Tensor AttentionBlock(const LayerWeights& layer, int64_t index, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin, Attention& attention, PartialSums* sums) const;
  at::Tensor FeedForward(const LayerWeights& layer, const at::Tensor& x, PartialSums* sums) const;
  // Forward() in float32 on the CPU, without autograd: by HostRows, in place where possible.
  at::Tensor ForwardOnHost(const TransformerWeights& weights, const at::Tensor& ids, const at::Tensor& positions,
                           Attention& attention, PartialSums* sums) const;
  at::Tensor AttendOnHost(const LayerWeights& layer, int64_t index, const at::Tensor& normed,
                          const at::Tensor& positions, Attention& attention, PartialSums* sums) const;

  const ModelConfig config_;
  at::Tensor cos_, sin_;  // [max_position_embeddings, head_dim]
};

}  // namespace syncopate::model
