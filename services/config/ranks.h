#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/host_port.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::config {

// The rank of this process among the trainer's ranks: trainer.rank, or the environment variable RANK (set by torchrun
// and by Kubernetes' indexed jobs), else 0. INVALID_ARGUMENT (reason BAD_CONFIG) if it is not below trainer.world, or
// if it is above 0 and trainer.rank0 is empty.
absl::StatusOr<int32_t> GetTrainerRank(const v1::TrainerSection& trainer);

// GetTrainerRank for the ranks of a rollouter: rollouter.rank, rollout.tensor_parallel and rollouter.rank0.
absl::StatusOr<int32_t> GetRolloutRank(const v1::RunConfig& config);

// The secret that the launcher of a rollouter's ranks gives to all of them in their environment (ranks/group_secret.h);
// "" if the ranks show certificates or tokens instead, which `is_secured` says they have. INVALID_ARGUMENT (reason
// BAD_CONFIG) if they have neither, or if the variable is no secret.
absl::StatusOr<std::string> FindReplicaSecret(bool is_secured);

// An address to listen at, and the key of the configuration that names it.
struct ListenAddress {
  HostPort address;
  std::string key;
};

// Where a trainer's rank on the CPU listens for the others: trainer.ranks_listen, or if that is empty any port of
// trainer.listen's host. INVALID_ARGUMENT (reason BAD_ADDRESS).
absl::StatusOr<ListenAddress> GetTrainerRanksListen(const v1::TrainerSection& trainer);

// Where a rollouter's rank on the CPU listens for the others: any port of rollouter.ranks_listen's host. Errors as
// GetTrainerRanksListen.
absl::StatusOr<ListenAddress> GetRolloutRanksListen(const v1::RollouterSection& rollouter);

// The bytes of rollout.host_kv_memory, which each rank of a rollouter takes.
int64_t GetHostKvBytes(const v1::RolloutSection& rollout);

// SHA-256 of everything that the ranks of one trainer or rollouter must have in common: all keys except those of single
// processes.
std::string RankConfigDigest(const v1::RunConfig& config);

}  // namespace syncopate::config
