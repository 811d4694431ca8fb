#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "syncopate/v1/config.pb.h"
#include "tools/doctor/finding.h"
#include "tools/doctor/machine.h"

namespace syncopate::doctor {

// The memory of one rank of a trainer from its start to its end, in bytes. Activations, gathered layers and a reference
// policy come besides.
struct RankMemory {
  int64_t state = 0;  // its shard's weights, gradients and moments, and the copy in which a GPU computes
  int64_t send = 0;   // its send slots: copies of its shard as it travels
  int64_t lent = 0;   // of `send`: base weights, once for all slots, which rollouters on the same device map
  int64_t moved = 0;  // the part of `state` that is copied when it leaves a GPU or comes back: the rest is made anew
  int64_t total() const { return state + send; }
};

// The memory of each rank, by rank. Errors of config::FindRunModel, MakeManifest, BuildLayout and SyncPlan::Create.
absl::StatusOr<std::vector<RankMemory>> GetRankMemory(const v1::RunConfig& config);

// One finding for each rank of the trainer of `config`; bad if the ranks do not fit this machine: on CPUs all of them
// together, on GPUs each of them. No findings if the model cannot be read, which ExamineInputs reports.
std::vector<Finding> ExamineRankMemory(const Machine& machine, const v1::RunConfig& config);

}  // namespace syncopate::doctor
