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

// The host's time in a runner, by the host's clock.
struct RunnerTimes {
  double launch_s = 0;
  double await_s = 0;  // blocked until a step's tokens were there
  int64_t steps = 0;
};

// An engine with random weights on GPU 0, like a rollouter's: two weight sets, exchanged by remap; the second one may be
// borrowed. With several ranks each rank is a thread and uses the GPU of its number.
class EngineWorld {
 public:
  struct Options {
    std::string model = "qwen2.5-0.5b";  // of model/presets.h
    int64_t max_sequences = 256;
    int64_t max_context = 2048;
    int64_t kv_tokens = 0;           // tokens whose keys and values have room; 0: max_sequences * max_context
    int64_t max_prefill_tokens = 0;  // Engine::Options::max_prefill_tokens
    bool deterministic = false;      // RunnerOptions::deterministic
    int32_t tensor_parallel = 1;     // ranks
    int64_t lora_rank = 0;           // of adapters on all projections; 0: none
    bool borrowed = false;           // sync.install: borrowed; of one rank
    double host_kv_gib = 0;          // rollout.host_kv_memory
  };
  // NOT_FOUND reason UNKNOWN_MODEL; INVALID_ARGUMENT reasons BAD_CONFIG, TOO_FEW_GPUS; errors of CudaBackend::Create
  // and Engine::Create.
  static absl::StatusOr<std::unique_ptr<EngineWorld>> Create(const Options& options);

  rollouter::Engine& engine() { return *engine_; }
  const model::ModelConfig& config() const { return config_; }
  const RunnerTimes& times() const { return *times_; }
  int64_t prefill_tokens() const { return prefill_tokens_; }  // in one step
  double create_s() const { return create_s_; }
  // The GPU memory that the engine's start took; the CUDA context of this process existed before.
  int64_t used_bytes() const { return used_bytes_; }

 private:
  explicit EngineWorld(const model::ModelConfig& config) : config_(config) {}

  // Makes the backend of one rank, on that rank's thread.
  absl::StatusOr<std::shared_ptr<rollouter::CudaBackend>> MakeBackend(const Manifest& manifest, int32_t rank,
                                                                      bool borrowed = false);
  absl::StatusOr<std::shared_ptr<rollouter::EngineBackend>> MakeRanks(const Manifest& whole, int32_t world);

  const model::ModelConfig config_;
  // For several ranks. They are destroyed in reverse order: the graphs that use a group before the group.
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
