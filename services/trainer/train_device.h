#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "ranks/late_ranks.h"
#include "ranks/meeting.h"
#include "services/config/run_model.h"
#include "synchronizer/messages.h"
#include "synchronizer/transport/transport.h"
#include "syncopate/v1/config.pb.h"
#include "trainer/ranks/leading_policy.h"
#include "trainer/staging/weight_stager.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::trainerd {

// Where one rank of a trainer computes, and what its policy has there.
struct RankDevice {
  RankPlace place;
  trainer::StateArenaFactory arenas;  // memory of it that a policy's state can leave; null: as PolicyTrainer has it
  int64_t state_bytes = 0;            // that it has for a policy's state; 0: what the machine has
};

// Of this rank, by train.device: "cuda" is another GPU of this host for each rank, as long as there are any. Which
// implementation a binary has is decided by linking, as that of OpenTrainDevice, whose errors it has.
absl::StatusOr<RankDevice> OpenRankDevice(const v1::RunConfig& config, int32_t rank);

// What a trainer has because of where it computes. Members are freed from the last to the first.
struct TrainDevice {
  std::string name = "cpu";  // or "cuda:N"
  int64_t arena_bytes = 0;   // that send slots take of the device beside its allocator of tensors
  config::RunModel model;
  RankDevice rank0;
  std::unique_ptr<LateRanks> ranks;  // those that share the policy, this being rank 0; null: this alone
  std::unique_ptr<trainer::PolicyTrainer> policy;
  std::unique_ptr<trainer::LeadingPolicy> leading;  // of `policy`, with `ranks`
  // What takes steps, is staged and saved.
  trainer::Policy* shared_policy() const {
    return leading != nullptr ? static_cast<trainer::Policy*>(leading.get()) : policy.get();
  }
  std::unique_ptr<trainer::WeightStager> stager;
  std::vector<std::shared_ptr<const void>> borrowed;  // by the transports
  // Beside "grpc", which reads the stager's store and is there if `offers_grpc`.
  std::vector<std::unique_ptr<synchronizer::SourceTransport>> transports;
  bool offers_grpc = true;
  synchronizer::DeviceFacts facts;
};

// What the policy of a run begins with on a device, be it of model.path, random, or about to be restored from a
// checkpoint.
absl::StatusOr<trainer::PolicyTrainer::Options> InitialPolicyOptions(const v1::RunConfig& config,
                                                                     const config::RunModel& model,
                                                                     const RankDevice& device);

// Makes the policy, and if there are several ranks what leads it.
absl::Status MakePolicy(const v1::RunConfig& config, TrainDevice* device);

// The CPU, with staging in host memory and no transport but "grpc".
absl::StatusOr<TrainDevice> HostTrainDevice(const v1::RunConfig& config, config::RunModel model);

// What train.device and sync.transport ask for. Which implementation a binary has is decided by linking:
// syncopate_train_device_cpu, or syncopate_train_device_cuda, which knows both. FAILED_PRECONDITION reason NO_CUDA or
// NO_GPU as model::ChooseDevice; INVALID_ARGUMENT reason BAD_CONFIG as CheckTrainDevice; RESOURCE_EXHAUSTED reason
// OUT_OF_GPU_MEMORY; errors of the model's weights, before anything is allocated on a GPU.
absl::StatusOr<TrainDevice> OpenTrainDevice(const v1::RunConfig& config, config::RunModel model);

}  // namespace syncopate::trainerd
