#pragma once

#include <cstdint>

#include "base/status.h"
#include "trainer/actor/actor_options.h"
#include "trainer/loss/loss_figures.h"
#include "trainer/loss/loss_options.h"
#include "trainer/loss/outcomes.h"
#include "trainer/memory/cache_rule.h"

// Options and results of a training step, without libtorch, so that daemons can name them.
namespace syncopate::trainer {

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
  double learning_rate = 0;  // of the update that was made last
  double entropy = 0;        // of the current policy at the trained positions, nats
  double reward_mean = 0;
  double reward_std = 0;  // over all samples
  double reward_max = 0;
  double reward_min = 0;
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
