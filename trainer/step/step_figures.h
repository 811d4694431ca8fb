#pragma once

#include <cstdint>

#include "trainer/loss/loss_figures.h"
#include "trainer/loss/outcomes.h"
#include "trainer/memory/memory_figures.h"

namespace syncopate::trainer {

// Seconds of one step. What did not happen took exactly 0.0.
struct StepTimes {
  double step_seconds = 0;  // since the step before ended
  double wait_seconds = 0;  // part of step_seconds: without a batch
  double forward_backward_seconds = 0, optimizer_seconds = 0;
  double proximal_seconds = 0;   // 0.0 with one update a batch: the proximal policy is the current one then
  double reference_seconds = 0;  // a pass before the step; 0.0 unless the KL is taken off the rewards
  double stage_seconds = 0;      // writing the version into the send arena; 0.0 if it was not published
  // What the step thread waited for since the step before: for stagings, and for the copies of exports.
  double stage_wait_seconds = 0, export_wait_seconds = 0;
  double parameters_load_seconds = 0, parameters_offload_seconds = 0;
  double optimizer_load_seconds = 0, optimizer_offload_seconds = 0;
  double reference_load_seconds = 0, reference_offload_seconds = 0;
  // The step's turn on a shared device: until the rollouters had left it, the state was there, and it had gone.
  double turn_drain_seconds = 0, turn_load_seconds = 0, turn_offload_seconds = 0;
};

// Bytes on the device after the step, its publication and what they moved; and bytes that were moved.
struct StepMemory {
  int64_t parameters_moved_bytes = 0, optimizer_moved_bytes = 0, reference_moved_bytes = 0;
  int64_t turn_moved_bytes = 0;
  int64_t memory_allocated_bytes = 0, memory_reserved_bytes = 0;
  int64_t parameters_device_bytes = 0, optimizer_device_bytes = 0, gradients_device_bytes = 0;
  int64_t reference_device_bytes = 0;
  int64_t cache_flushes = 0;
};

// The mean cross-entropy of given answers that were not trained on, per written token, in nats.
struct HeldOutLoss {
  double loss = 0;
  int64_t tokens = 0;  // over which the mean is
};

// What one training step was like: the one list of its figures. TrainStep fills loss, data, rewards, updates and its
// own times; StepLoop what lies around the step. A member has the name that metrics.jsonl, Prometheus and TensorBoard
// give it; what it means stands in trainer/record/step_figure_table.cc. Means over tokens are over every trained token
// of the batch, all micro-batches and ranks; shares are from 0 to 1.
struct StepFigures : loss::LossFigures, loss::DataFigures, StepTimes, StepMemory {
  double reward_mean = 0, reward_std = 0, reward_max = 0, reward_min = 0;
  double zero_variance_ratio = 0;
  double gradient_norm = 0, update_norm = 0;
  double learning_rate = 0;
  int64_t updates = 0, skipped_updates = 0;
  double staleness_mean = 0;
  int64_t staleness_max = 0;
  int64_t samples_so_far = 0, tokens_so_far = 0;
  double rollouters_idle_ratio = 0;
};

// The figures of what was moved and of what is on the device.
void SetMoves(const PolicyMoves& moves, StepFigures* figures);
void SetMemory(const PolicyMemory& memory, StepFigures* figures);

}  // namespace syncopate::trainer
