#pragma once

#include <cstdint>

#include "base/status.h"

// Options and results of a training step, without libtorch, so that daemons can name them.
namespace syncopate::trainer {

// How the mismatch between behaviour policy and trainer weights the loss, rho = exp(proximal - behaviour):
//   kMis   rho where mis_low <= rho <= mis_high, else 0 (IcePop band, bounds inclusive)
//   kTis   min(rho, tis_cap)
//   kNone  no weight, and the clip is anchored on the behaviour policy: PPO as if the data were on-policy
enum class Correction { kMis, kTis, kNone };

struct PolicyLossOptions {
  double clip_low = 0.2;  // DAPO's clip-higher: ratio clipped to [1 - clip_low, 1 + clip_high]
  double clip_high = 0.28;
  Correction correction = Correction::kMis;
  double mis_low = 0.5;
  double mis_high = 2.0;
  double tis_cap = 2.0;

  // INVALID_ARGUMENT (reason BAD_STEP_OPTIONS) naming the value.
  absl::Status Validate() const;
};

struct AdamWOptions {
  double learning_rate = 2e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.0;   // decoupled, on every parameter
  double max_grad_norm = 1.0;  // global L2 norm; 0 turns clipping off
  // A gradient is scaled to at most this many times the norm that the second moment remembers; more than 1, so that a
  // lasting rise is followed, or 0 for off. See Actor::OptimizerStep.
  double max_grad_growth = 2.0;

  absl::Status Validate() const;
};

struct TrainStepOptions {
  PolicyLossOptions loss;
  double temperature = 1.0;            // of the rollouts; log-probs are compared at it
  int64_t updates_per_batch = 1;       // optimizer updates; the batch's groups are dealt out in order
  int64_t micro_batch_tokens = 16384;  // input tokens per forward and backward
  absl::Status Validate() const;
};

// Token means are over every trained token of the batch, all micro-batches and ranks.
struct TrainStepMetrics {
  int64_t updates = 0;  // made; one whose advantages are all 0 is not
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
  int64_t tokens = 0;                    // trained
  int64_t sequences = 0;
  double mean_response_tokens = 0;
  double forward_backward_seconds = 0;
  double optimizer_seconds = 0;
  double proximal_seconds = 0;  // exactly 0.0 with one update per batch: proximal is current then
};

}  // namespace syncopate::trainer
