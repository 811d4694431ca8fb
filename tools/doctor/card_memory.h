#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "syncopate/v1/config.pb.h"
#include "tools/doctor/finding.h"
#include "tools/doctor/machine.h"

namespace syncopate::doctor {

// What one trainer rank and one rank of a rollouter need of a GPU, in bytes, whether they have a card each, split one
// or take turns on one (run.share_gpu). Activations of a step, and buffers of the engine, come besides.
struct CardMemory {
  int64_t state = 0;       // the trainer's weights in float32 and the type that computes, gradients and moments
  int64_t send = 0;        // its send slots
  int64_t lent = 0;        // of them: base weights that a rollouter maps in turns, in place of its own
  int64_t weights = 0;     // one weight set of the rollouter's largest rank, as it travels
  int64_t sequence = 0;    // keys and values of one sequence of the run's context, of one rank's heads
  int64_t sequences = 0;   // those of rollout.max_sequences
  int64_t moved = 0;       // of the state, in each direction of a turn: what is not computed again
  int64_t host_state = 0;  // host memory for the state of all ranks between turns
  int64_t host_send = 0;   // host memory for their send slots between turns
  int64_t host_kv = 0;     // rollout.host_kv_memory of all ranks of the rollouter

  // On the trainer's and on the rollouter's card. Two weight sets unless sync.install is in_place.
  int64_t apart_trainer() const { return state + send; }
  int64_t apart_rollouter() const { return 2 * weights + sequences; }
  int64_t split() const { return apart_trainer() + apart_rollouter(); }
  // In the trainer's turn, and in the rollouters' while they receive.
  int64_t trainers_turn() const { return state + send; }
  int64_t rollouters_turn() const { return weights + send - lent + sequences; }
};

// Errors as GetRankMemory().
absl::StatusOr<CardMemory> GetCardMemory(const v1::RunConfig& config);

// Three findings for a run on GPUs: the memory with a card each, on one card that is split, and on one card in turns
// with the seconds that a turn moves. That of the configuration itself is bad if it does not fit the GPUs of this
// machine, and a warning if keys and values of all sequences do not. No findings without a GPU in the configuration,
// or if the model cannot be read, which ExamineInputs reports.
std::vector<Finding> ExamineCardMemory(const Machine& machine, const v1::RunConfig& config);

}  // namespace syncopate::doctor
