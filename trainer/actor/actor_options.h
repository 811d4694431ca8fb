#pragma once

#include <cstdint>

#include "base/status.h"

// Options of the policy that is trained, without libtorch, so that daemons can name them.
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
  // Supervised updates that a run begins with at a rate of their own: after the warm-up it falls linearly from
  // supervised_rate to learning_rate. The schedule then begins at its first update, without warm-up. 0: none.
  int64_t supervised_updates = 0;
  double supervised_rate = 0;

  absl::Status Validate() const;
};

// The learning rate of update number `update`, from 1. With W = warmup_updates: rate * update / W up to W; then, with p
// the share of the updates from W to schedule_updates that were made before this one, rate * (1 - (1 - final) p) or,
// for kCosine, rate * (final + (1 - final) (1 + cos(pi p)) / 2). With S = supervised_updates > 0: supervised_rate *
// update / W up to W, supervised_rate + (rate - supervised_rate) (update - W) / (S - W) up to S, and then the above of
// update - S with W = 0.
double LearningRateAt(const AdamWOptions& options, int64_t update);

// What backward computes again instead of finding it kept.
enum class Recompute : uint8_t {
  kNone,
  kSelective,  // outputs of norms and of SwiGLU, inside their backward kernels: a fifth of the memory for 2 % time
  kFull,       // each layer from its input: a layer's worth of memory for a third forward
};

}  // namespace syncopate::trainer
