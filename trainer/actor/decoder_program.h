#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "model/ops.h"
#include "model/routed_experts.h"
#include "model/transformer.h"
#include "trainer/actor/actor_options.h"
#include "trainer/actor/flat_shards.h"
#include "trainer/actor/unit_access.h"

namespace syncopate::trainer {

// The decoder's forward and backward as an explicit list of operations over packed sequences, without autograd: what is
// kept for backward stands in LayerTape, and nothing else is. Equal to autograd over model::Transformer, which a test
// says. The weights' dtype is that of the activations; gradients of weights are float32. Stateless; work is queued on
// the current stream of the device. Weights and gradients are asked for unit by unit; errors are those of UnitAccess.
// T packed rows, D hidden, Q heads * head_dim, KV kv_heads * head_dim, F intermediate.
class DecoderProgram {
 public:
  // `transformer` must outlive this.
  // `deterministic`: as of model::OpsFor().
  DecoderProgram(const model::Transformer& transformer, at::Device device, Recompute recompute = Recompute::kSelective,
                 bool deterministic = false);

  // What backward needs of one layer. Recompute decides which tensors are kept; `input` always is.
  struct LayerTape {
    at::Tensor input;               // [T, D] residual stream that the layer reads
    at::Tensor input_rstd;          // [T] float32
    at::Tensor input_normed;        // [T, D]; kNone alone
    at::Tensor q_raw, k_raw;        // [T * heads, head_dim] before their norms; with qk_norm
    at::Tensor q_rstd, k_rstd;      // [T * heads] float32; with qk_norm
    at::Tensor qkv;                 // [T, Q + 2 KV], rotated
    model::Ops::Attended attended;  // y [T, Q]
    at::Tensor middle;              // [T, D] residual stream after attention
    at::Tensor middle_rstd;         // [T] float32
    at::Tensor middle_normed;       // [T, D]; kNone alone
    at::Tensor gate_up;             // [T, 2 F]; without what adapters add
    at::Tensor activation;          // [T, F]; kNone alone, and only if all weights are trained
    // model::InnerProducts() of each linear of a projection, by which its adapters' gradients are made; undefined for
    // one without adapters.
    std::vector<at::Tensor> qkv_inner, output_inner, gate_up_inner, down_inner;
    // Set in a layer of routed experts, where gate_up is [visits, 2 F], by visit (model/routed_experts.h).
    model::Routing routing;
  };
  struct Tape {
    std::vector<LayerTape> layers;
    at::Tensor output;       // [T, D] residual stream after the last layer
    at::Tensor output_rstd;  // [T] float32
    int64_t bytes() const;   // of all that it keeps
  };

  // ids [T] int64 -> final-normed hidden states [T, D]. `tape` may be null: nothing is kept then.
  absl::StatusOr<at::Tensor> Forward(UnitAccess& weights, const at::Tensor& ids,
                                     const model::PackedSequences& sequences, Tape* tape) const;
  // Forward with weights that this rank has whole.
  at::Tensor Forward(const model::TransformerWeights& weights, const at::Tensor& ids,
                     const model::PackedSequences& sequences, Tape* tape) const;

  // Adds the gradients of the weights to `gradients`, float32 tensors in the shapes of the weights; weights that are
  // not trained (the base, if the model has adapters) have none there. dhidden [T, D], in the weights' dtype. Frees the
  // tape layer by layer, so that its memory can be used again at once.
  absl::Status Backward(UnitAccess& weights, const at::Tensor& ids, const model::PackedSequences& sequences,
                        const at::Tensor& dhidden, Tape* tape, UnitAccess& gradients) const;
  void Backward(const model::TransformerWeights& weights, const at::Tensor& ids,
                const model::PackedSequences& sequences, const at::Tensor& dhidden, Tape* tape,
                const model::TransformerWeights& gradients) const;

  // For a rank without sequences, while other ranks compute theirs: makes the same calls for units as Forward and, if
  // `gradients` is not null, Backward, in the same order, and computes nothing.
  absl::Status Accompany(UnitAccess& weights, UnitAccess* gradients) const;

  // The unit of the weights that multiply hidden states into logits.
  int head_unit() const { return config_.tie_word_embeddings ? FlatShards::kEmbeddings : output_unit(); }

 private:
  int output_unit() const { return FlatShards::LayerUnit(config_.num_hidden_layers); }
  // Only adapters are trained; they are the unit behind the output.
  bool is_frozen() const { return config_.lora.enabled(); }
  int adapter_unit() const { return output_unit() + 1; }

  struct Stream;  // the residual stream as sum + what the next norm adds to it

  model::Ops::AttentionShape ComputeAttention(size_t index) const;
  LayerTape RunLayer(size_t index, const model::LayerWeights& layer, const Stream& stream,
                     const model::PackedSequences& sequences, at::Tensor* delta) const;
  void NormHeads(const model::LayerWeights& layer, LayerTape* tape) const;
  void NormHeadsBackward(const model::LayerWeights& layer, const LayerTape& tape, const model::LayerWeights& gradients,
                         const at::Tensor& dqkv) const;
  void Trim(LayerTape* tape) const;
  // RunExperts returns what a layer of routed experts adds to the stream; x is the normed stream after attention.
  // ExpertsBackward returns the gradient of x; AddExpertGradients adds those of the weights, once x is there again.
  at::Tensor RunExperts(const model::LayerWeights& layer, const at::Tensor& x, LayerTape* tape) const;
  struct ExpertGradients {
    at::Tensor dx;        // [T, D]
    at::Tensor dgate_up;  // [visits, 2 F]
    at::Tensor drouter;   // [T, experts] float32, of the router's outputs
  };
  ExpertGradients ExpertsBackward(const model::LayerWeights& layer, const LayerTape& tape, const at::Tensor& d,
                                  const model::LayerWeights& gradients) const;
  void AddExpertGradients(const model::LayerWeights& layer, const LayerTape& tape, const ExpertGradients& made,
                          const at::Tensor& x, const model::LayerWeights& gradients) const;
  // `d` is the gradient of the stream that the layer writes. Returns the gradient of the stream that it reads;
  // undefined for the first layer if no weights below it are trained.
  at::Tensor BackwardLayer(size_t index, const model::LayerWeights& layer, const LayerTape& tape,
                           const model::PackedSequences& sequences, const at::Tensor& d,
                           const model::LayerWeights& gradients) const;

  const model::ModelConfig& config_;
  const model::Ops& ops_;
  const Recompute recompute_;
  const at::Tensor cos_, sin_;
};

}  // namespace syncopate::trainer
