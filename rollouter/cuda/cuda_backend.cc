#include "rollouter/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "cuda/releasable_arena.h"
#include "cuda/stream.h"
#include "rollouter/cuda/attention_kernels.h"
#include "rollouter/cuda/cuda_kv_store.h"
#include "rollouter/cuda/cuda_model_runner.h"
#include "rollouter/cuda/decode_views.h"
#include "rollouter/cuda/nccl_device_ranks.h"
#include "rollouter/engine/host_model_runner.h"
#include "synchronizer/cuda/cuda_shadow_check.h"

namespace syncopate::rollouter {
namespace {

using cuda::ExportedMemory;
using synchronizer::CudaShadowChecker;
using synchronizer::RemappableArenas;

// Returns views of the weights at `address`, without ownership.
model::TransformerWeights ViewsAt(const model::ModelConfig& config, const Manifest& manifest, char* address,
                                  at::Device device) {
  const DType dtype = manifest.tensors().front().dtype;
  const at::TensorOptions options = at::TensorOptions(model::ToScalarType(dtype)).device(device);
  at::Tensor arena = at::for_blob(address, {manifest.arena_bytes() / DTypeBytes(dtype)})
                         .options(options)
                         .target_device(device)
                         .make_tensor();
  return model::ViewWeights(config, manifest, arena);
}

// Copies and blocks until the copy is done.
absl::Status CopyWeights(int device, char* to, const char* from, int64_t bytes, cudaMemcpyKind kind) {
  constexpr char kWhat[] = "moving the weights between GPU and host";
  constexpr absl::Duration kDeadline = absl::Seconds(60);  // 100 GB take 2 to 4 s
  const cuda::DeviceScope scope(device);
  SYNCOPATE_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::Create(device));
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::Event done, cuda::Event::Create(device));
  SYNCOPATE_RETURN_IF_ERROR(
      cuda::CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream.get()), kWhat));
  SYNCOPATE_RETURN_IF_ERROR(done.Record(stream.get()));
  return done.Wait(kDeadline, kWhat);
}

}  // namespace

class CudaBackend::Arenas : public WeightArenas {
 public:
  Arenas(int device, int64_t set_bytes, model::TransformerWeights weights, std::unique_ptr<CudaShadowChecker> checker)
      : device_(device), set_bytes_(set_bytes), weights_(std::move(weights)), checker_(std::move(checker)) {}

  const model::TransformerWeights& weights() const override { return weights_; }
  absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> BeginCheck(
      synchronizer::ShadowContents contents) override {
    return checker_->Begin(shadow(), std::move(contents));
  }
  virtual absl::StatusOr<ExportedMemory> ExportShadow() const = 0;

  absl::Status Release(bool keep_live) override {
    if (!keep_live) kept_ = cuda::PinnedBuffer();
    if (bytes() == 0) return absl::OkStatus();
    if (keep_live) {
      // Allocated before any memory is released, because host memory may not suffice.
      SYNCOPATE_ASSIGN_OR_RETURN(cuda::PinnedBuffer kept, cuda::PinnedBuffer::Create(set_bytes_));
      SYNCOPATE_RETURN_IF_ERROR(CopyWeights(device_, kept.data(), live(), set_bytes_, cudaMemcpyDeviceToHost));
      kept_ = std::move(kept);
    }
    return ReleaseMemory();
  }
  absl::Status Restore() override {
    if (bytes() > 0) return absl::OkStatus();
    SYNCOPATE_RETURN_IF_ERROR(RestoreMemory());
    if (kept_.bytes() == 0) return absl::OkStatus();
    SYNCOPATE_RETURN_IF_ERROR(
        CopyWeights(device_, const_cast<char*>(live()), kept_.data(), set_bytes_, cudaMemcpyHostToDevice));
    kept_ = cuda::PinnedBuffer();
    return absl::OkStatus();
  }

 protected:
  // Release or allocate the memory of all sets; their addresses stay the same.
  virtual absl::Status ReleaseMemory() = 0;
  virtual absl::Status RestoreMemory() = 0;

 private:
  const int device_;
  const int64_t set_bytes_;
  cuda::PinnedBuffer kept_;  // the live weights while their memory is released
  const model::TransformerWeights weights_;
  const std::unique_ptr<CudaShadowChecker> checker_;
};

// Two weight sets: an install changes the memory behind the live address, not the address.
class CudaBackend::Remapped final : public Arenas {
 public:
  Remapped(std::unique_ptr<RemappableArenas> arenas, cuda::Stream copies, model::TransformerWeights weights,
           std::unique_ptr<CudaShadowChecker> checker)
      : Arenas(arenas->device(), arenas->bytes(), std::move(weights), std::move(checker)),
        copies_(std::move(copies)),
        live_(arenas->live()),
        shadow_(arenas->shadow()),
        arenas_(std::move(arenas)) {}

  // Maps the shadow again after an exchange. If that fails, BeginCheck returns the error.
  char* shadow() override {
    MapShadow().IgnoreError();
    return shadow_;
  }
  const char* live() const override { return live_; }
  int64_t bytes() const override {
    MutexLock lock(&mutex_);
    return arenas_->released() ? 0 : 2 * arenas_->bytes();
  }
  absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> BeginCheck(
      synchronizer::ShadowContents contents) override {
    SYNCOPATE_RETURN_IF_ERROR(MapShadow());
    return Arenas::BeginCheck(std::move(contents));
  }
  absl::Status Exchange(const PolicyVersion&, uint64_t, absl::Duration) override {
    MutexLock lock(&mutex_);
    return arenas_->Exchange();
  }
  absl::Status CopyLive(const std::vector<ByteRange>& ranges) override {
    constexpr char kWhat[] = "copying the live weights to the shadow";
    SYNCOPATE_RETURN_IF_ERROR(MapShadow());
    const cuda::DeviceScope scope(copies_.device());
    for (const ByteRange& range : ranges) {
      SYNCOPATE_RETURN_IF_ERROR(
          cuda::CudaStatus(cudaMemcpyAsync(shadow_ + range.begin, live_ + range.begin,
                                           static_cast<size_t>(range.size()), cudaMemcpyDeviceToDevice, copies_.get()),
                           kWhat));
    }
    return cuda::CudaStatus(cudaStreamSynchronize(copies_.get()), kWhat);
  }
  absl::StatusOr<ExportedMemory> ExportShadow() const override {
    MutexLock lock(&mutex_);
    return arenas_->ExportShadow();
  }

 protected:
  absl::Status ReleaseMemory() override {
    MutexLock lock(&mutex_);
    return arenas_->Release();
  }
  absl::Status RestoreMemory() override {
    MutexLock lock(&mutex_);
    return arenas_->Restore();
  }

 private:
  absl::Status MapShadow() {
    MutexLock lock(&mutex_);
    return arenas_->MapShadow();
  }

  const cuda::Stream copies_;
  char* const live_;
  char* const shadow_;
  mutable Mutex mutex_;
  const std::unique_ptr<RemappableArenas> arenas_ ABSL_PT_GUARDED_BY(mutex_);
};

// One weight set, which receives while no decode step runs.
class CudaBackend::InPlace final : public Arenas {
 public:
  InPlace(int device, std::unique_ptr<cuda::ReleasableArena> arena, model::TransformerWeights weights,
          std::unique_ptr<CudaShadowChecker> checker)
      : Arenas(device, arena->bytes(), std::move(weights), std::move(checker)), arena_(std::move(arena)) {}

  char* shadow() override { return arena_->data(); }
  const char* live() const override { return arena_->data(); }
  int64_t bytes() const override { return arena_->allocated_bytes(); }
  bool in_place() const override { return true; }
  absl::Status Exchange(const PolicyVersion&, uint64_t, absl::Duration) override { return absl::OkStatus(); }
  // Live and shadow are the same bytes.
  absl::Status CopyLive(const std::vector<ByteRange>&) override { return absl::OkStatus(); }
  absl::StatusOr<ExportedMemory> ExportShadow() const override {
    return Error(absl::StatusCode::kFailedPrecondition, "NOT_LENT", "weights that are received in place are not lent");
  }

 protected:
  absl::Status ReleaseMemory() override { return arena_->Release(); }
  absl::Status RestoreMemory() override { return arena_->Restore(); }

 private:
  const std::unique_ptr<cuda::ReleasableArena> arena_;
};

absl::StatusOr<std::shared_ptr<CudaBackend>> CudaBackend::Create(const model::ModelConfig& config,
                                                                 const Manifest& manifest, int device,
                                                                 CudaInstall install, CudaMemoryUse memory,
                                                                 NcclGroup* ranks) {
  if (config.head_dim > kMaxHeadDim) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_MODEL",
                 absl::StrCat("model.head_dim ", config.head_dim, " is above ", kMaxHeadDim, ", the most on a GPU"));
  }
  SYNCOPATE_RETURN_IF_ERROR(model::CheckLayerKinds(config, absl::StrCat("cuda:", device)));
  const at::Device place(at::kCUDA, static_cast<c10::DeviceIndex>(device));
  SYNCOPATE_ASSIGN_OR_RETURN(auto checker, CudaShadowChecker::Create({.device = device}));
  std::unique_ptr<Arenas> arenas;
  if (install == CudaInstall::kRemap) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto pair, RemappableArenas::Create(manifest.arena_bytes(), {.device = device}));
    SYNCOPATE_ASSIGN_OR_RETURN(auto copies, cuda::Stream::Create(device));
    auto weights = ViewsAt(config, manifest, pair->live(), place);
    arenas = std::make_unique<Remapped>(std::move(pair), std::move(copies), std::move(weights), std::move(checker));
  } else {
    SYNCOPATE_ASSIGN_OR_RETURN(
        auto arena, cuda::ReleasableArena::Create(manifest.arena_bytes(), {.device = device, .what = "the weights"}));
    auto weights = ViewsAt(config, manifest, arena->data(), place);
    arenas = std::make_unique<InPlace>(device, std::move(arena), std::move(weights), std::move(checker));
  }
  return std::shared_ptr<CudaBackend>(
      new CudaBackend(config, manifest.tensors().front().dtype, place, std::move(arenas), memory, ranks));
}

CudaBackend::CudaBackend(const model::ModelConfig& config, DType dtype, at::Device device,
                         std::unique_ptr<Arenas> arenas, CudaMemoryUse memory, NcclGroup* ranks)
    : config_(config),
      dtype_(dtype),
      device_(device),
      arenas_(std::move(arenas)),
      memory_(memory),
      group_(ranks),
      ranks_(ranks != nullptr ? std::make_unique<NcclDeviceRanks>(ranks, device.index()) : nullptr) {}

CudaBackend::~CudaBackend() = default;

WeightArenas& CudaBackend::arenas() { return *arenas_; }

// A larger pass uses the GPU better, but all decoding sequences, and an install, wait for its end.
int64_t CudaBackend::prefill_tokens(bool deterministic) const {
  constexpr int64_t kLeast = 4096, kMost = 16384;
  constexpr double kOperations = 0.05 * 500e12;  // the operations that an H100 does in 50 ms
  if (deterministic || !ViewForDecoding(config_, arenas_->weights()).ok()) return kLeast;
  const int64_t weights = config_.num_hidden_layers * config_.hidden_size *
                          (2 * config_.query_size() + 2 * config_.key_value_size() + 3 * config_.intermediate_size);
  int64_t tokens = kLeast;
  while (tokens < kMost && 2.0 * static_cast<double>(2 * tokens * weights) <= kOperations) tokens *= 2;
  return tokens;
}

// Both runners keep keys and values in the data type of the weights.
int64_t CudaBackend::kv_block_bytes() const {
  return config_.num_hidden_layers * 2 * kBlockTokens * config_.key_value_size() * DTypeBytes(dtype_);
}

absl::StatusOr<std::unique_ptr<ModelRunner>> CudaBackend::MakeRunner(const RunnerOptions& options) {
  const absl::StatusOr<DecodeViews> views = ViewForDecoding(config_, arenas().weights());
  if (views.ok()) {
    CudaModelRunner::Options runner{.device = device_.index(),
                                    .memory_share = memory_.share,
                                    .others_bytes = memory_.others_bytes,
                                    .runner = options};
    if (ranks_ != nullptr) {
      runner.ranks = ranks_.get();
      runner.agree_on_least = [this](int64_t mine) { return ranks_->AgreeOnLeast(mine); };
    }
    return CudaModelRunner::Create(config_, *views, runner);
  }
  SYNCOPATE_LOG(kInfo, "decodes by operators of libtorch, not by graphs: %s", views.status().message());
  const ModelRunner::Capacity capacity{.blocks = options.blocks > 0 ? options.blocks : options.BlocksForAll(),
                                       .host_blocks = options.host_blocks,
                                       .plans_under_way = std::max(1, options.plans_under_way)};
  auto store = std::make_unique<CudaKvStore>(config_, capacity.blocks, capacity.host_blocks,
                                             at::TensorOptions(model::ToScalarType(dtype_)).device(device_));
  return std::make_unique<HostModelRunner>(config_, &arenas(), std::move(store), device_, options, capacity, group_);
}

absl::StatusOr<ExportedMemory> CudaBackend::ExportShadow() const { return arenas_->ExportShadow(); }

absl::StatusOr<CudaEngine> MakeCudaBackend(const model::ModelConfig& config, const Manifest& manifest, int device,
                                           CudaInstall install, CudaMemoryUse memory, NcclGroup* ranks) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::shared_ptr<CudaBackend> backend,
                             CudaBackend::Create(config, manifest, device, install, memory, ranks));
  return CudaEngine{backend, [backend] { return backend->ExportShadow(); }};
}

}  // namespace syncopate::rollouter
