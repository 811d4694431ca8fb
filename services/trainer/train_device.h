#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/daemon/card_account.h"
#include "base/status.h"
#include "ranks/late_ranks.h"
#include "ranks/meeting.h"
#include "services/config/run_model.h"
#include "synchronizer/ipc/base_lending.h"
#include "synchronizer/messages.h"
#include "synchronizer/transport/transport.h"
#include "syncopate/v1/config.pb.h"
#include "trainer/actor/base_memory.h"
#include "trainer/ranks/group_stager.h"
#include "trainer/ranks/leading_policy.h"
#include "trainer/staging/weight_stager.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::trainerd {

// Rollouters yield 5 s after they have lost their trainer, and a yield that waits for a weight sync takes 5 s more.
inline constexpr absl::Duration kRolloutersLeaveWithin = absl::Seconds(30);

// The device on which one rank of a trainer computes, and the memory that its policy has there.
struct RankDevice {
  RankPlace place;
  trainer::StateArenaFactory arenas;  // device memory that state can leave; null: PolicyTrainer's
  int64_t state_bytes = 0;            // available for a policy's state; 0: the memory of the machine
  int64_t total_bytes = 0;            // of the device; 0: the CPU
  std::function<absl::StatusOr<int64_t>()> read_free_bytes = nullptr;  // of the device now; null: the CPU
  // Who owns the device's memory; null: the CPU, or a driver that does not say.
  std::shared_ptr<daemon::CardAccount> card = nullptr;
  // Keeps other daemons from measuring on the device, until the result is freed; the result is null while one measures.
  // Null: the CPU.
  std::function<std::shared_ptr<const void>()> hold_card = nullptr;
  // How long rollouters that share it have to leave it when the trainer starts.
  absl::Duration leave_within = kRolloutersLeaveWithin;
};

// Opens the device of rank `rank`, by train.device: "cuda" is a different GPU of this host for each rank, as long as
// there are enough. The linked library decides which implementation a binary has, as for OpenTrainDevice. Errors of
// OpenTrainDevice.
absl::StatusOr<RankDevice> OpenRankDevice(const v1::RunConfig& config, int32_t rank);

// What one rank of a trainer has that depends on the device it computes on: its shard of the policy, and what sends it.
// Members are destroyed from the last to the first.
struct TrainDevice {
  std::string name = "cpu";  // or "cuda:N"
  int64_t arena_bytes = 0;   // device memory of send slots, outside the tensor allocator
  config::RunModel model;
  int32_t rank = 0;
  RankDevice device;
  // Where the policy puts its base of adapters; null: into memory of its own.
  std::shared_ptr<const trainer::BaseMemory> base_memory;
  std::shared_ptr<LateRanks> ranks;  // the ranks that share the policy; null: only this one
  std::unique_ptr<trainer::PolicyTrainer> policy;
  std::unique_ptr<trainer::LeadingPolicy> leading;  // leads `policy` on all ranks; null but on rank 0 of several
  // The policy that takes steps and is staged and saved.
  trainer::Policy* shared_policy() const {
    return leading != nullptr ? static_cast<trainer::Policy*>(leading.get()) : policy.get();
  }
  std::unique_ptr<trainer::WeightStager> stager;  // of this rank's shard; leads all ranks if `staging_group`
  trainer::GroupStager* staging_group = nullptr;  // `stager`, on rank 0 of several
  // Lends the stager's base weights to rollouters of this host; null: they are sent to all.
  std::unique_ptr<synchronizer::ipc::BaseLender> base_lender;
  std::vector<std::shared_ptr<const void>> borrowed;  // used by the transports
  // Transports besides "grpc", which reads the stager's store and exists if `offers_grpc`.
  std::vector<std::unique_ptr<synchronizer::SourceTransport>> transports;
  bool offers_grpc = true;
  synchronizer::DeviceFacts facts;

  // Where rollouters of this host can map the base weights; "" if they are not lent, or no version is staged yet.
  // Thread-safe.
  std::string LendBase() const;
};

// What a trainer knows to have of its GPU's memory, by owner: all but its context and libraries. The sum is
// `send_bytes`, of its send slots there, and what `policy` has reserved.
daemon::CardOwners ListOwnParts(const trainer::PolicyMemory& policy, int64_t send_bytes);
// ListOwnParts of what `device` has now. Call it on the thread that owns the policy, or between that thread's calls.
daemon::CardOwners ListOwnParts(const TrainDevice& device);

// Makes device->policy, whether its weights are those of model.path, random, or about to be restored from a checkpoint,
// and on rank 0 of several the LeadingPolicy. Its state and `send_bytes` must fit the device: if rollouters share it
// (run.share_gpu), those that an earlier trainer has left there have leave_within to leave, else
// FAILED_PRECONDITION (reason TURN_STUCK). RESOURCE_EXHAUSTED (reason STATE_TOO_LARGE) at once if it fits no empty one.
absl::Status MakePolicy(const v1::RunConfig& config, int64_t send_bytes, TrainDevice* device);

// What this rank has on a device that it shares (run.share_gpu) in its turn, but for a step's own: its state and send
// slots, which are to be had again in each turn. Call it when the state is there.
int64_t CountTurnBytes(const TrainDevice& device);
// Whether the device has room for `turn_bytes`, what is there of them already included. RESOURCE_EXHAUSTED (reason
// NO_ROOM) with the numbers. OK on a CPU.
absl::Status CheckTurnRoom(const TrainDevice& device, int64_t turn_bytes);

// What rank `device.rank` of the run sends, and for whom it packs.
trainer::StagedPart PartOf(const v1::RunConfig& config, const TrainDevice& device);

// Makes `stager` the device's, on rank 0 of several in a GroupStager.
void SetStager(std::unique_ptr<trainer::WeightStager> stager, TrainDevice* device);

// Makes device->base_lender. If that fails, the base is sent to all, and the log says why.
void OpenBaseLender(uint64_t fingerprint, TrainDevice* device);

// Stages in host memory, in sync.send_slots slots (by default 2: a reader of the last version continues while the
// next one is staged), after MakePolicy. A trainer on the CPU that takes turns with rollouters (run.share_gpu) lends
// them the base of adapters; one on a GPU stages there what it lends.
absl::Status StageOnHost(const v1::RunConfig& config, Manifest wire, TrainDevice* device);

// Rank `rank` of a trainer on the CPU, which stages in host memory and offers no transport but "grpc".
absl::StatusOr<TrainDevice> HostTrainDevice(const v1::RunConfig& config, config::RunModel model, int32_t rank);

// The device that train.device and sync.transport ask for, for rank `rank`. The linked library decides which
// implementation a binary has: syncopate_train_device_cpu, or syncopate_train_device_cuda, which supports both.
// FAILED_PRECONDITION reason NO_CUDA or NO_GPU as model::ChooseDevice; INVALID_ARGUMENT reason BAD_CONFIG as
// CheckTrainDevice; RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY; errors of the model's weights, before anything is
// allocated on a GPU.
absl::StatusOr<TrainDevice> OpenTrainDevice(const v1::RunConfig& config, config::RunModel model, int32_t rank);

}  // namespace syncopate::trainerd
