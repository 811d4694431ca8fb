#pragma once

#include <cstdint>

#include "base/status.h"
#include "trainer/loss/loss_figures.h"
#include "trainer/loss/loss_options.h"
#include "trainer/loss/outcomes.h"

// Options and results of a training step, without libtorch, so that daemons can name them.
namespace syncopate::trainer {

// How the learning rate goes on after the warm-up.
enum class Schedule : uint8_t { kConstant, kLinear, kCosine };

struct AdamWOptions {
  double learning_rate = 2e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.0;   // decoupled
  bool decay_all = true;       // else matrices and embeddings alone: norms and biases are not shrunk
  double max_grad_norm = 1.0;  // global L2 norm; 0 turns clipping off
  // A gradient is scaled to at most this many times the norm that the second moment remembers; more than 1, so that a
  // lasting rise is followed, or 0 for off. See Actor::OptimizerStep.
  double max_grad_growth = 2.0;
  Schedule schedule = Schedule::kConstant;
  int64_t warmup_updates = 0;    // the rate rises linearly over these
  int64_t schedule_updates = 0;  // made when linear and cosine have come to their end, where they stay
  double final_fraction = 0;     // of learning_rate, at that end

  absl::Status Validate() const;
};

// Of update number `update`, from 1. With W = warmup_updates: rate * update / W up to W; then, with p the share of the
// updates from W to schedule_updates that were made before this one, rate * (1 - (1 - final) p) or, for kCosine,
// rate * (final + (1 - final) (1 + cos(pi p)) / 2).
double LearningRateAt(const AdamWOptions& options, int64_t update);

// What backward computes again instead of finding it kept.
enum class Recompute : uint8_t {
  kNone,
  kSelective,  // outputs of norms and of SwiGLU, inside their backward kernels: about a fifth of the memory for 2 %
               // time
  kFull,       // each layer from its input: a layer's worth of memory for a third forward
};

struct TrainStepOptions {
  syncopate::loss::LossOptions loss;
  double temperature = 1.0;            // of the rollouts; log-probs are compared at it
  int64_t updates_per_batch = 1;       // optimizer updates; the batch's groups are dealt out in order
  int64_t micro_batch_tokens = 16384;  // input tokens per forward and backward
  Recompute recompute = Recompute::kSelective;
  bool float32_logits = false;  // where the policy computes in bfloat16
  absl::Status Validate() const;
  // Of a step that learns given answers, on the same packing: the mean cross-entropy of their tokens at temperature 1,
  // in one update.
  TrainStepOptions Supervised() const;
};

// When a policy's allocator gives what it holds unused back to its device: CacheRule.
enum class EmptyCache : uint8_t { kAlways, kOnPressure, kNever };

// Where a policy's state is while nobody needs it there: StateResidency.
struct MemoryOptions {
  bool offload_params = false;
  bool offload_optimizer_for_logprob = false;
  bool offload_reference = false;
  EmptyCache empty_cache = EmptyCache::kOnPressure;
};

// Token means are over every trained token of the batch, all micro-batches and ranks.
struct TrainStepMetrics {
  int64_t updates = 0;  // made; one whose advantages are all 0 is not
  int64_t skipped = 0;  // updates that were not made because loss or gradient were not finite
  double loss = 0;
  double gradient_norm = 0;  // before clipping; of the last update that was made
  double entropy = 0;        // of the current policy at the trained positions, nats
  double reward_mean = 0;
  double reward_std = 0;  // over all samples
  double reward_max = 0;
  double zero_variance_fraction = 0;  // groups without signal
  double clip_fraction = 0;
  double rejected_fraction = 0;
  double mismatch_k3 = 0;  // proximal against behaviour
  double ratio_max = 0;
  double effective_sample_fraction = 0;  // (mean w)^2 / mean(w^2)
  syncopate::loss::LossFigures figures;  // the same and more
  syncopate::loss::DataFigures data;
  int64_t tokens = 0;  // trained
  int64_t sequences = 0;
  double mean_response_tokens = 0;
  double forward_backward_seconds = 0;
  double optimizer_seconds = 0;
  double proximal_seconds = 0;   // exactly 0.0 with one update per batch: proximal is current then
  double reference_seconds = 0;  // of a pass before the step; exactly 0.0 unless the KL is taken off the rewards
};

}  // namespace syncopate::trainer
