#pragma once

#include <cstdint>

#include "base/status.h"
#include "trainer/actor/actor_options.h"
#include "trainer/loss/loss_options.h"
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
  bool deterministic = false;   // the same batches give the same bits on a GPU, as they do on a CPU anyway
  absl::Status Validate() const;
  // Options of a supervised step, with the same packing: the loss is the mean cross-entropy of their tokens at
  // temperature 1, in one update.
  TrainStepOptions Supervised() const;
};

// Which parts of a policy's state leave the device when they are not needed: see StateResidency.
struct MemoryOptions {
  bool offload_params = false;
  bool offload_optimizer_for_logprob = false;
  bool offload_reference = false;
  EmptyCache empty_cache = EmptyCache::kOnPressure;
};

}  // namespace syncopate::trainer
