#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::config {

// Which of the trainer's ranks this process is: trainer.rank, or what RANK in its environment says (as torchrun and
// Kubernetes' indexed jobs set it), else 0. INVALID_ARGUMENT (reason BAD_CONFIG) if that is none of trainer.world ranks,
// or another one than 0 that is not told trainer.rank0.
absl::StatusOr<int32_t> TrainerRankOf(const v1::TrainerSection& trainer);

// The same for the ranks of a rollouter: rollouter.rank, rollout.tensor_parallel and rollouter.rank0.
absl::StatusOr<int32_t> RolloutRankOf(const v1::RunConfig& config);

// The secret that whoever starts the ranks of a rollouter gives to all of them by their environment
// (ranks/group_secret.h); "" if they are to show certificates or tokens instead, which `is_secured` says they have.
// INVALID_ARGUMENT (reason BAD_CONFIG) if they have neither, or the variable is no secret.
absl::StatusOr<std::string> FindReplicaSecret(bool is_secured);

// Of everything that the ranks of one trainer or rollouter must have in common: all keys but those of single processes.
// SHA-256.
std::string RankConfigDigest(const v1::RunConfig& config);

}  // namespace syncopate::config
