#include "bench/generate/engine_world.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/decode/random_fill.h"
#include "bench/measure/figures.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "model/cuda/torch_stream.h"
#include "model/presets.h"
#include "rollouter/engine/engine_commands.h"

namespace syncopate::bench {
namespace {

using rollouter::EngineBackend;
using rollouter::ModelRunner;
using SteadyClock = std::chrono::steady_clock;

// A runner whose calls are timed.
class TimedRunner final : public ModelRunner {
 public:
  TimedRunner(std::unique_ptr<ModelRunner> runner, std::shared_ptr<RunnerTimes> times)
      : runner_(std::move(runner)), times_(std::move(times)) {}
  Capacity capacity() const override { return runner_->capacity(); }
  int64_t kv_bytes() const override { return runner_->kv_bytes(); }
  int64_t host_kv_bytes() const override { return runner_->host_kv_bytes(); }
  int64_t buffer_bytes() const override { return runner_->buffer_bytes(); }
  absl::Status ReleaseBlocks() override { return runner_->ReleaseBlocks(); }
  absl::Status RestoreBlocks() override { return runner_->RestoreBlocks(); }
  absl::Status LendBlocks() override { return runner_->LendBlocks(); }
  absl::Status ReturnBlocks() override { return runner_->ReturnBlocks(); }
  void BindThread() override { runner_->BindThread(); }
  void UnbindThread() override { runner_->UnbindThread(); }
  absl::StatusOr<Ticket> Launch(const rollouter::StepPlan& plan) override {
    const auto begin = SteadyClock::now();
    absl::StatusOr<Ticket> ticket = runner_->Launch(plan);
    times_->launch_s += SecondsSince(begin);
    ++times_->steps;
    return ticket;
  }
  absl::StatusOr<rollouter::StepResult> Await(const Ticket& ticket) override {
    const auto begin = SteadyClock::now();
    absl::StatusOr<rollouter::StepResult> result = runner_->Await(ticket);
    times_->await_s += SecondsSince(begin);
    return result;
  }
  absl::Status Synchronize() override { return runner_->Synchronize(); }

 private:
  const std::unique_ptr<ModelRunner> runner_;
  const std::shared_ptr<RunnerTimes> times_;
};

class TimedBackend final : public EngineBackend {
 public:
  TimedBackend(std::shared_ptr<EngineBackend> backend, std::shared_ptr<RunnerTimes> times)
      : backend_(std::move(backend)), times_(std::move(times)) {}
  at::Device device() const override { return backend_->device(); }
  DType dtype() const override { return backend_->dtype(); }
  rollouter::WeightArenas& arenas() override { return backend_->arenas(); }
  int64_t kv_block_bytes() const override { return backend_->kv_block_bytes(); }
  int64_t prefill_tokens(bool deterministic) const override { return backend_->prefill_tokens(deterministic); }
  absl::StatusOr<std::unique_ptr<ModelRunner>> MakeRunner(const rollouter::RunnerOptions& options) override {
    SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<ModelRunner> runner, backend_->MakeRunner(options));
    return std::make_unique<TimedRunner>(std::move(runner), times_);
  }

 private:
  const std::shared_ptr<EngineBackend> backend_;
  const std::shared_ptr<RunnerTimes> times_;
};

// Draws numbers on the GPU that keep activations in the range of trained models.
absl::Status FillWeights(const Manifest& manifest, char* arena) {
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const TensorSpec& spec = manifest.tensors()[i];
    const ByteRange& range = manifest.ranges()[i];
    float mean = 0, deviation = 1 / std::sqrt(static_cast<float>(spec.shape.back()));
    if (absl::StrContains(spec.name, "norm")) mean = 1, deviation = 0.1f;
    if (absl::EndsWith(spec.name, ".bias")) deviation = 0.1f;
    if (absl::StrContains(spec.name, "embed") || absl::StrContains(spec.name, "lm_head")) deviation *= 2.5f;
    SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(
        FillNormal(arena + range.begin, range.size() / DTypeBytes(spec.dtype), mean, deviation, i + 1, nullptr),
        "drawing weights"));
  }
  return cuda::CudaStatus(cudaDeviceSynchronize(), "drawing weights");
}

}  // namespace

absl::StatusOr<std::shared_ptr<rollouter::CudaBackend>> EngineWorld::MakeBackend(const Manifest& manifest, int32_t rank,
                                                                                 bool borrowed) {
  const cuda::DeviceScope device(rank);
  NcclGroup* group = nullptr;
  if (slice_.has_value()) {
    const int32_t world = static_cast<int32_t>(groups_.size());
    SYNCOPATE_ASSIGN_OR_RETURN(
        groups_[static_cast<size_t>(rank)],
        JoinNcclRanks({.device = rank, .rank = rank, .world = world, .stream = model::TorchStream(rank)}, id_,
                      absl::Minutes(2)));
    group = groups_[static_cast<size_t>(rank)].get();
  }
  SYNCOPATE_ASSIGN_OR_RETURN(
      std::shared_ptr<rollouter::CudaBackend> backend,
      rollouter::CudaBackend::Create(slice_.has_value() ? slice_->config : config_, manifest, rank,
                                     borrowed ? rollouter::CudaInstall::kBorrowed : rollouter::CudaInstall::kRemap,
                                     {.share = 0.9}, group));
  if (borrowed) {  // there is no second set yet
    SYNCOPATE_RETURN_IF_ERROR(FillWeights(manifest, const_cast<char*>(backend->arenas().live())));
    return backend;
  }
  // Before the engine measures its products, because products of zeros are faster.
  SYNCOPATE_RETURN_IF_ERROR(FillWeights(manifest, backend->arenas().shadow()));
  // Adapter sets share the base, and the engine decides which of them serves for what.
  if (backend->arenas().adapter_sets() > 0) return backend;
  SYNCOPATE_RETURN_IF_ERROR(backend->arenas().Exchange({1, 0}, /*digest=*/1, absl::InfiniteDuration()));
  SYNCOPATE_RETURN_IF_ERROR(FillWeights(manifest, backend->arenas().shadow()));
  return backend;
}

absl::StatusOr<std::shared_ptr<EngineBackend>> EngineWorld::MakeRanks(const Manifest& whole, int32_t world) {
  int gpus = 0;
  SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(cudaGetDeviceCount(&gpus), "counting GPUs"));
  if (gpus < world) {
    return Error(absl::StatusCode::kInvalidArgument, "TOO_FEW_GPUS",
                 absl::StrCat("--tensor-parallel ", world, " needs as many GPUs, but this host has ", gpus));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(slice_, rollouter::MakeRankSlice(config_, whole, world));
  SYNCOPATE_ASSIGN_OR_RETURN(id_, cuda::NewNcclId());
  groups_.resize(static_cast<size_t>(world));
  followers_ = std::make_unique<testing::FollowerThreads>(
      world,
      [this](int32_t rank) -> absl::StatusOr<std::shared_ptr<EngineBackend>> {
        return MakeBackend(slice_->manifest, rank);
      },
      [this](const absl::Status& why) {
        std::fprintf(stderr, "a rank has failed: %s\n", why.ToString().c_str());
        if (groups_[0] != nullptr) groups_[0]->Abort(std::string(why.message()));
      });
  SYNCOPATE_ASSIGN_OR_RETURN(std::shared_ptr<EngineBackend> backend, MakeBackend(slice_->manifest, /*rank=*/0));
  return rollouter::MakeLeadingBackend(std::move(backend), followers_.get());
}

absl::StatusOr<std::unique_ptr<EngineWorld>> EngineWorld::Create(const Options& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(model::ModelConfig config, model::FindPreset(options.model));
  config.max_position_embeddings = std::min(config.max_position_embeddings, options.max_context);
  if (options.lora_rank > 0) {
    config.lora = {.rank = options.lora_rank,
                   .alpha = 2.0 * static_cast<double>(options.lora_rank),
                   .projections = model::LoraConfig::AllProjections()};
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const cuda::GpuMemory before, cuda::ReadGpuMemory(/*device=*/0));
  const auto begin = SteadyClock::now();
  std::unique_ptr<EngineWorld> world(new EngineWorld(config));
  SYNCOPATE_ASSIGN_OR_RETURN(const Manifest manifest, model::MakeWireManifest(config, DType::kBFloat16));
  std::shared_ptr<EngineBackend> backend;
  if (options.tensor_parallel == 1) {
    SYNCOPATE_ASSIGN_OR_RETURN(backend, world->MakeBackend(manifest, /*rank=*/0, options.borrowed));
  } else {
    SYNCOPATE_ASSIGN_OR_RETURN(backend, world->MakeRanks(manifest, options.tensor_parallel));
  }
  world->prefill_tokens_ =
      options.max_prefill_tokens > 0 ? options.max_prefill_tokens : backend->prefill_tokens(options.deterministic);
  const double host_bytes = options.host_kv_gib * static_cast<double>(int64_t{1} << 30);
  const int64_t host_blocks = static_cast<int64_t>(host_bytes) / backend->kv_block_bytes();
  SYNCOPATE_ASSIGN_OR_RETURN(
      world->engine_,
      rollouter::Engine::Create(config, std::make_shared<TimedBackend>(backend, world->times_),
                                {.max_sequences = options.max_sequences,
                                 .max_prefill_tokens = world->prefill_tokens_,
                                 .kv_blocks = options.kv_tokens / rollouter::kBlockTokens,
                                 .host_kv_blocks = host_blocks,
                                 .preemption = host_blocks > 0 ? rollouter::Scheduler::Preemption::kSwap
                                                               : rollouter::Scheduler::Preemption::kRecompute,
                                 .deterministic = options.deterministic}));
  world->engine_->BindThread();
  if (options.borrowed) {
    world->engine_->Lend();
    SYNCOPATE_RETURN_IF_ERROR(world->engine_->CloseLent());
    SYNCOPATE_RETURN_IF_ERROR(world->engine_->TakeShadow());
    SYNCOPATE_RETURN_IF_ERROR(FillWeights(manifest, backend->arenas().shadow()));
  }
  SYNCOPATE_RETURN_IF_ERROR(world->engine_->policy().Install({1, 1}, /*digest=*/1));
  if (options.borrowed) SYNCOPATE_RETURN_IF_ERROR(world->engine_->ReturnShadow());
  world->create_s_ = SecondsSince(begin);
  SYNCOPATE_ASSIGN_OR_RETURN(const cuda::GpuMemory after, cuda::ReadGpuMemory(/*device=*/0));
  world->used_bytes_ = before.free - after.free;
  return world;
}

}  // namespace syncopate::bench
