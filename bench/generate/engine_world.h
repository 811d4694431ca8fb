#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/model_config.h"
#include "rollouter/cuda/cuda_backend.h"
#include "rollouter/engine/engine.h"
#include "rollouter/engine/rank_slice.h"
#include "tests/support/follower_threads.h"

namespace syncopate::bench {

// Where a runner's time goes, by the host's clock.
struct RunnerTimes {
  double launch_s = 0;
  double await_s = 0;  // blocked until a step's tokens were there
  int64_t steps = 0;
};

// An engine with random weights on GPU 0, as a rollouter has it: two weight sets, exchanged by remap. With several ranks
// each is a thread and has the GPU of its number.
class EngineWorld {
 public:
  struct Options {
    std::string model = "qwen2.5-0.5b";  // of model/presets.h
    int64_t max_sequences = 256;
    int64_t max_context = 2048;
    int64_t max_prefill_tokens = 0;  // as Engine::Options
    bool deterministic = false;      // as RunnerOptions
    int32_t tensor_parallel = 1;     // ranks
  };
  // NOT_FOUND reason UNKNOWN_MODEL; INVALID_ARGUMENT reasons BAD_CONFIG, TOO_FEW_GPUS; errors as CudaBackend::Create and Engine::Create.
  static absl::StatusOr<std::unique_ptr<EngineWorld>> Create(const Options& options);

  rollouter::Engine& engine() { return *engine_; }
  const model::ModelConfig& config() const { return config_; }
  const RunnerTimes& times() const { return *times_; }
  int64_t prefill_tokens() const { return prefill_tokens_; }  // of a step
  double create_s() const { return create_s_; }
  // Of the GPU's memory, by the engine's start: the CUDA context of this process was there before.
  int64_t used_bytes() const { return used_bytes_; }

 private:
  explicit EngineWorld(const model::ModelConfig& config) : config_(config) {}

  // Of one rank, on its thread.
  absl::StatusOr<std::shared_ptr<rollouter::CudaBackend>> MakeBackend(const Manifest& manifest, int32_t rank);
  absl::StatusOr<std::shared_ptr<rollouter::EngineBackend>> MakeRanks(const Manifest& whole, int32_t world);

  const model::ModelConfig config_;
  // Of several ranks. They end in the reverse order: what a group has put in graphs before the group.
  std::optional<rollouter::RankSlice> slice_;
  cuda::NcclId id_ = {};
  std::vector<std::unique_ptr<NcclGroup>> groups_;
  std::unique_ptr<testing::FollowerThreads> followers_;
  std::shared_ptr<RunnerTimes> times_ = std::make_shared<RunnerTimes>();
  std::unique_ptr<rollouter::Engine> engine_;
  int64_t prefill_tokens_ = 0;
  double create_s_ = 0;
  int64_t used_bytes_ = 0;
};

}  // namespace syncopate::bench
