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

// The device on which one rank of a trainer computes, and the memory that its policy has there.
struct RankDevice {
  RankPlace place;
  trainer::StateArenaFactory arenas;  // device memory that state can leave; null: PolicyTrainer's
  int64_t state_bytes = 0;            // available for a policy's state; 0: the memory of the machine
};

// Opens the device of rank `rank`, by train.device: "cuda" is a different GPU of this host for each rank, as long as
// there are enough. The linked library decides which implementation a binary has, as for OpenTrainDevice. Errors of
// OpenTrainDevice.
absl::StatusOr<RankDevice> OpenRankDevice(const v1::RunConfig& config, int32_t rank);

// The parts of a trainer that depend on the device it computes on. Members are destroyed from the last to the first.
struct TrainDevice {
  std::string name = "cpu";  // or "cuda:N"
  int64_t arena_bytes = 0;   // device memory of send slots, outside the tensor allocator
  config::RunModel model;
  RankDevice rank0;
  std::unique_ptr<LateRanks> ranks;  // the ranks that share the policy, this being rank 0; null: only this one
  std::unique_ptr<trainer::PolicyTrainer> policy;
  std::unique_ptr<trainer::LeadingPolicy> leading;  // leads `policy` on all ranks; null without `ranks`
  // The policy that takes steps and is staged and saved.
  trainer::Policy* shared_policy() const {
    return leading != nullptr ? static_cast<trainer::Policy*>(leading.get()) : policy.get();
  }
  std::unique_ptr<trainer::WeightStager> stager;
  std::vector<std::shared_ptr<const void>> borrowed;  // used by the transports
  // Transports besides "grpc", which reads the stager's store and exists if `offers_grpc`.
  std::vector<std::unique_ptr<synchronizer::SourceTransport>> transports;
  bool offers_grpc = true;
  synchronizer::DeviceFacts facts;
};

// The options with which the policy of a run begins on a device, whether its weights are those of model.path, random,
// or about to be restored from a checkpoint.
absl::StatusOr<trainer::PolicyTrainer::Options> InitialPolicyOptions(const v1::RunConfig& config,
                                                                     const config::RunModel& model,
                                                                     const RankDevice& device);

// Makes the policy, and with several ranks the LeadingPolicy.
absl::Status MakePolicy(const v1::RunConfig& config, TrainDevice* device);

// A trainer on the CPU, which stages in host memory and offers no transport but "grpc".
absl::StatusOr<TrainDevice> HostTrainDevice(const v1::RunConfig& config, config::RunModel model);

// The device that train.device and sync.transport ask for. The linked library decides which implementation a binary
// has: syncopate_train_device_cpu, or syncopate_train_device_cuda, which supports both. FAILED_PRECONDITION reason
// NO_CUDA or NO_GPU as model::ChooseDevice; INVALID_ARGUMENT reason BAD_CONFIG as CheckTrainDevice; RESOURCE_EXHAUSTED
// reason OUT_OF_GPU_MEMORY; errors of the model's weights, before anything is allocated on a GPU.
absl::StatusOr<TrainDevice> OpenTrainDevice(const v1::RunConfig& config, config::RunModel model);

}  // namespace syncopate::trainerd
