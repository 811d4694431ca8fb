#include "services/config/model_options.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rollouter/engine/rank_slice.h"
#include "services/config/ranks.h"
#include "synchronizer/plan/layout_text.h"
#include "synchronizer/plan/sync_plan.h"
#include "synchronizer/transport/transport_traits.h"

namespace syncopate::config {
namespace {

absl::Status DoesNotFit(const std::string& key, const std::string& value, const model::DeviceRequest& request,
                        const std::string& device) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_CONFIG",
               absl::StrCat(key, " is ", value, ", but ", request.key, " ", request.wanted, " is ", device,
                            " here; set ", key, "=auto, or name the device"));
}

absl::Status CheckTransport(const v1::RunConfig& config, const model::DeviceRequest& request,
                            const std::string& device) {
  // Checked only when the device is known: for "auto" and "cuda" the process must first ask the machine.
  const std::string& transport = config.sync().transport();
  if (!synchronizer::NeedsGpus(transport) || model::IsCuda(device)) return absl::OkStatus();
  return DoesNotFit("sync.transport", transport, request, device);
}

// The bytes of a version in the largest send slot of the trainer's ranks.
absl::StatusOr<int64_t> FindLargestSlot(const v1::RunConfig& config, const model::ModelConfig& shape,
                                        const Manifest& wire) {
  const int64_t world = config.trainer().world();
  if (world == 1 && config.rollout().tensor_parallel() == 1) return wire.arena_bytes();
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::Layout source,
                             synchronizer::BuildLayout(wire, absl::StrCat("units:", world, ":fp32")));
  const std::string receivers = MakeRolloutLayout(config, shape);
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::Layout destination,
                             synchronizer::BuildLayout(wire, receivers.empty() ? "whole:1" : receivers));
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::SyncPlan plan,
                             synchronizer::SyncPlan::Create(wire, source, destination));
  int64_t largest = 0;
  for (int32_t rank = 0; rank < world; ++rank) largest = std::max(largest, plan.send_bytes(rank));
  return largest;
}

}  // namespace

int SyncMaxCtas(const v1::RunConfig& config) {
  // With several trainer ranks a sync's NCCL kernels run beside those of the step, and both must find free
  // multiprocessors at any time, or each waits for the other. 0 leaves NCCL its own choice.
  constexpr int kBesideRanks = 16;  // fewer would halve the transfer rate
  return config.trainer().world() > 1 ? kBesideRanks : 0;
}

model::DeviceRequest TrainDeviceRequest(const v1::RunConfig& config, int32_t rank) {
  return {.key = "train.device", .wanted = config.train().device(), .member = rank};
}

model::DeviceRequest RolloutDeviceRequest(const v1::RunConfig& config) {
  return {
      .key = "rollout.device",
      .wanted = config.rollout().device(),
      // On one host the trainer's ranks take the first GPUs; rollouters, with `tensor_parallel` GPUs each, take the
      // next ones, unless they take turns on them.
      .reserved = config.run().share_gpu() ? 0 : static_cast<int>(config.trainer().world()),
      // A host with exactly one replica's number of GPUs has no trainer on it, e.g. a container.
      .together = static_cast<int>(config.rollout().tensor_parallel()),
      .member = config.rollouter().index() * config.rollout().tensor_parallel() + GetRolloutRank(config).value_or(0)};
}

absl::Status CheckTrainDevice(const v1::RunConfig& config, const std::string& device) {
  return CheckTransport(config, TrainDeviceRequest(config), device);
}

absl::Status CheckRolloutDevice(const v1::RunConfig& config, const std::string& device) {
  const model::DeviceRequest request = RolloutDeviceRequest(config);
  SYNCOPATE_RETURN_IF_ERROR(CheckTransport(config, request, device));
  const std::string& install = config.sync().install();
  // "swap" exchanges two pointers and works only on the CPU; "remap" needs GPU memory.
  const bool fits = install == "auto" || install == "in_place" || install == "borrowed" ||
                    (install == "swap") != model::IsCuda(device);
  return fits ? absl::OkStatus() : DoesNotFit("sync.install", install, request, device);
}

WeightMemory ChooseWeightMemory(const v1::RunConfig& config, const model::ModelConfig& shape) {
  const std::string& install = config.sync().install();
  const bool has_ranks = config.rollout().tensor_parallel() > 1;
  // A rank of several has its slice of the base, which is not as the trainer has it.
  if (config.run().share_gpu() && shape.lora.enabled()) {
    return has_ranks ? WeightMemory::kTwoSets : WeightMemory::kMappedBase;
  }
  // After a turn of the trainer there are no weights to go on with, so nothing is lost by receiving in place.
  if (install == "in_place" || (install == "auto" && config.run().share_gpu())) return WeightMemory::kInPlace;
  if (shape.lora.enabled()) return WeightMemory::kTwoSets;
  if (install == "borrowed") return WeightMemory::kBorrowed;
  // One rank of several does not borrow.
  return install == "auto" && !has_ranks ? WeightMemory::kAuto : WeightMemory::kTwoSets;
}

bool MapsBaseOnGpu(const v1::RunConfig& config, const model::ModelConfig& shape) {
  return LendsBase(config, shape) && config.sync().transport() != "grpc";
}

absl::StatusOr<int64_t> CountLateGpuBytes(const v1::RunConfig& config, const model::ModelConfig& shape,
                                          const Manifest& wire) {
  if (!config.run().share_gpu() || config.sync().transport() == "grpc") return 0;
  const int64_t slots = std::max<int64_t>(config.sync().send_slots(), 1);
  if (!MapsBaseOnGpu(config, shape)) {
    SYNCOPATE_ASSIGN_OR_RETURN(const int64_t largest, FindLargestSlot(config, shape, wire));
    return slots * largest;
  }
  const int64_t base = wire.adapters_begin();
  // The base is lent to one rollouter of the trainer's GPU at a time. Any other one needs a base of its own. "auto" and
  // "cuda" give each process another GPU.
  const std::string& device = config.rollout().device();
  const bool on_trainers_gpu = device == config.train().device() && absl::StartsWith(device, "cuda:");
  const bool surely_maps = on_trainers_gpu && config.run().rollouters() == 1;
  return slots * (wire.arena_bytes() - base) + (surely_maps ? 0 : base);
}

rollouter::EngineLoop::Options MakeEngineOptions(const v1::RunConfig& config, const model::ModelConfig& shape) {
  rollouter::EngineLoop::Options options;
  options.model = shape;
  options.max_sequences = config.rollout().max_sequences();
  options.kv_tokens = config.rollout().kv_tokens();
  options.host_kv_bytes = GetHostKvBytes(config.rollout());
  options.deterministic = config.rollout().deterministic();
  options.bucket_bytes = config.sync().bucket_bytes();
  options.dtype = ToWireDType(config);
  options.threads = static_cast<int>(config.run().threads());
  return options;
}

}  // namespace syncopate::config
