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
  // Of kBorrowed and kAuto, see CudaModelRunner::Options.
  virtual int64_t mapped_set_bytes() const { return 0; }
  virtual absl::Status AddSet(bool /*lends*/) { return absl::OkStatus(); }
  virtual const cuda::GpuMemoryBlock* spare() const { return nullptr; }

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

// Two weight sets, of which the second may be borrowed: an install changes the memory behind the live address, not the
// address.
class CudaBackend::Remapped final : public Arenas {
 public:
  // `has_second`: the shadow has memory already.
  Remapped(std::unique_ptr<RemappableArenas> arenas, bool has_second, cuda::Stream copies,
           model::TransformerWeights weights, std::unique_ptr<CudaShadowChecker> checker)
      : Arenas(arenas->device(), arenas->bytes(), std::move(weights), std::move(checker)),
        copies_(std::move(copies)),
        live_(arenas->live()),
        shadow_(arenas->shadow()),
        arenas_(std::move(arenas)),
        has_second_(has_second) {}

  // Maps the shadow again after an exchange. If that fails, BeginCheck returns the error.
  char* shadow() override {
    MapShadow().IgnoreError();
    return shadow_;
  }
  const char* live() const override { return live_; }
  int64_t bytes() const override {
    MutexLock lock(&mutex_);
    if (arenas_->released()) return 0;
    return (has_second_ && (!borrows_ || taken_) ? 2 : 1) * arenas_->bytes();
  }
  int64_t borrowed_bytes() const override {
    MutexLock lock(&mutex_);
    return borrows_ ? arenas_->mapped_bytes() : 0;
  }
  absl::Status TakeShadow() override {
    MutexLock lock(&mutex_);
    if (!borrows_ || taken_) return absl::OkStatus();
    SYNCOPATE_RETURN_IF_ERROR(arenas_->MapShadow());
    taken_ = true;
    return absl::OkStatus();
  }
  absl::Status DropShadow() override {
    MutexLock lock(&mutex_);
    if (!borrows_ || !taken_) return absl::OkStatus();
    // Attention multiplies what lies beyond a sequence's end by zero. Old weights are finite; what a transfer that
    // failed has left need not be. Only that set is at the shadow's address, and only then.
    if (!exchanged_)
      SYNCOPATE_RETURN_IF_ERROR(cuda::ZeroGpuMemory(arenas_->device(), shadow_, arenas_->mapped_bytes()));
    SYNCOPATE_RETURN_IF_ERROR(arenas_->UnmapShadow());
    taken_ = exchanged_ = false;
    return absl::OkStatus();
  }
  int64_t mapped_set_bytes() const override {
    MutexLock lock(&mutex_);
    return arenas_->mapped_bytes();
  }
  absl::Status AddSet(bool lends) override {
    MutexLock lock(&mutex_);
    SYNCOPATE_RETURN_IF_ERROR(arenas_->AddShadow());
    has_second_ = true;
    borrows_ = lends;
    return lends ? arenas_->UnmapShadow() : absl::OkStatus();
  }
  const cuda::GpuMemoryBlock* spare() const override {
    MutexLock lock(&mutex_);
    return &arenas_->spare();
  }
  absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> BeginCheck(
      synchronizer::ShadowContents contents) override {
    SYNCOPATE_RETURN_IF_ERROR(MapShadow());
    return Arenas::BeginCheck(std::move(contents));
  }
  absl::Status Exchange(const PolicyVersion&, uint64_t, absl::Duration) override {
    MutexLock lock(&mutex_);
    SYNCOPATE_RETURN_IF_ERROR(arenas_->Exchange());
    exchanged_ = taken_;
    return absl::OkStatus();
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
    SYNCOPATE_RETURN_IF_ERROR(arenas_->Restore());
    taken_ = exchanged_ = false;
    return borrows_ ? arenas_->UnmapShadow() : absl::OkStatus();
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
  bool has_second_ ABSL_GUARDED_BY(mutex_);
  bool borrows_ ABSL_GUARDED_BY(mutex_) = false;    // the second set is mapped elsewhere, unless it is taken
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;      // between TakeShadow() and DropShadow()
  bool exchanged_ ABSL_GUARDED_BY(mutex_) = false;  // since TakeShadow()
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
                                                                 CudaInstall install, double memory_share,
                                                                 NcclGroup* ranks) {
  if (config.head_dim > kMaxHeadDim) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_MODEL",
                 absl::StrCat("model.head_dim ", config.head_dim, " is above ", kMaxHeadDim, ", the most on a GPU"));
  }
  SYNCOPATE_RETURN_IF_ERROR(model::CheckLayerKinds(config, absl::StrCat("cuda:", device)));
  const at::Device place(at::kCUDA, static_cast<c10::DeviceIndex>(device));
  SYNCOPATE_ASSIGN_OR_RETURN(auto checker, CudaShadowChecker::Create({.device = device}));
  std::unique_ptr<Arenas> arenas;
  if (install != CudaInstall::kInPlace) {
    const bool has_second = install == CudaInstall::kRemap;
    SYNCOPATE_ASSIGN_OR_RETURN(
        auto pair, RemappableArenas::Create(manifest.arena_bytes(), {.device = device, .shadow_later = !has_second}));
    SYNCOPATE_ASSIGN_OR_RETURN(auto copies, cuda::Stream::Create(device));
    auto weights = ViewsAt(config, manifest, pair->live(), place);
    arenas = std::make_unique<Remapped>(std::move(pair), has_second, std::move(copies), std::move(weights),
                                        std::move(checker));
  } else {
    SYNCOPATE_ASSIGN_OR_RETURN(
        auto arena, cuda::ReleasableArena::Create(manifest.arena_bytes(), {.device = device, .what = "the weights"}));
    auto weights = ViewsAt(config, manifest, arena->data(), place);
    arenas = std::make_unique<InPlace>(device, std::move(arena), std::move(weights), std::move(checker));
  }
  return std::shared_ptr<CudaBackend>(new CudaBackend(config, manifest.tensors().front().dtype, place,
                                                      std::move(arenas), install, memory_share, ranks));
}

CudaBackend::CudaBackend(const model::ModelConfig& config, DType dtype, at::Device device,
                         std::unique_ptr<Arenas> arenas, CudaInstall install, double memory_share, NcclGroup* ranks)
    : config_(config),
      dtype_(dtype),
      device_(device),
      arenas_(std::move(arenas)),
      install_(install),
      memory_share_(memory_share),
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
  const bool may_lend = install_ == CudaInstall::kBorrowed || install_ == CudaInstall::kAuto;
  if (views.ok()) {
    CudaModelRunner::Options runner{.device = device_.index(), .memory_share = memory_share_, .runner = options};
    if (ranks_ != nullptr) {
      runner.ranks = ranks_.get();
      runner.agree_on_least = [this](int64_t mine) { return ranks_->AgreeOnLeast(mine); };
    }
    if (may_lend) {
      runner.lending = install_ == CudaInstall::kAuto ? KvLending::kAuto : KvLending::kAlways;
      runner.set_bytes = arenas_->mapped_set_bytes();
      runner.add_set = [this](bool lends) { return arenas_->AddSet(lends); };
      runner.lent_memory = [this]() -> const cuda::GpuMemoryBlock& { return *arenas_->spare(); };
    }
    return CudaModelRunner::Create(config_, *views, runner);
  }
  SYNCOPATE_LOG(kInfo, "decodes by operators of libtorch, not by graphs: %s", views.status().message());
  if (install_ == CudaInstall::kBorrowed) {
    return Error(
        absl::StatusCode::kInvalidArgument, "BAD_CONFIG",
        absl::StrCat("sync.install is borrowed, but this model does not decode by graphs, whose keys and values "
                     "alone can be lent (",
                     views.status().message(), "); set sync.install=auto"));
  }
  if (may_lend) SYNCOPATE_RETURN_IF_ERROR(arenas_->AddSet(/*lends=*/false));
  const ModelRunner::Capacity capacity{.blocks = options.blocks > 0 ? options.blocks : options.BlocksForAll(),
                                       .host_blocks = options.host_blocks,
                                       .plans_under_way = std::max(1, options.plans_under_way)};
  auto store = std::make_unique<CudaKvStore>(config_, capacity.blocks, capacity.host_blocks,
                                             at::TensorOptions(model::ToScalarType(dtype_)).device(device_));
  return std::make_unique<HostModelRunner>(config_, &arenas(), std::move(store), device_, options, capacity, group_);
}

absl::StatusOr<ExportedMemory> CudaBackend::ExportShadow() const { return arenas_->ExportShadow(); }

absl::StatusOr<CudaEngine> MakeCudaBackend(const model::ModelConfig& config, const Manifest& manifest, int device,
                                           CudaInstall install, double memory_share, NcclGroup* ranks) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::shared_ptr<CudaBackend> backend,
                             CudaBackend::Create(config, manifest, device, install, memory_share, ranks));
  return CudaEngine{backend, [backend] { return backend->ExportShadow(); }};
}

}  // namespace syncopate::rollouter
