#include "rollouter/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>
#include <vector>

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
#include "rollouter/engine/adapter_places.h"
#include "rollouter/engine/adapter_sets.h"
#include "rollouter/engine/host_model_runner.h"
#include "synchronizer/cuda/cuda_shadow_check.h"
#include "synchronizer/cuda/cuda_shared_base.h"

namespace syncopate::rollouter {
namespace {

using cuda::ExportedMemory;
using synchronizer::CudaShadowChecker;
using synchronizer::CudaSharedBase;
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
  // What kBorrowed and kAuto need, see CudaModelRunner::Options.
  virtual int64_t mapped_set_bytes() const { return 0; }
  virtual absl::Status AddSet(bool /*lends*/) { return absl::OkStatus(); }
  virtual const cuda::GpuMemoryBlock* spare() const { return nullptr; }
  virtual AdapterPlaces::Contents adapter_contents() const { return {}; }

  absl::Status Release(bool keep_live) override {
    if (!keep_live) kept_ = cuda::PinnedBuffer();
    if (keep_live && bytes() == 0) return absl::OkStatus();
    if (keep_live) {
      // Allocated before any memory is released, because host memory may not suffice.
      const int64_t begin = KeptBegin();
      SYNCOPATE_ASSIGN_OR_RETURN(cuda::PinnedBuffer kept, cuda::PinnedBuffer::Create(set_bytes_ - begin));
      SYNCOPATE_RETURN_IF_ERROR(
          CopyWeights(device_, kept.data(), live() + begin, kept.bytes(), cudaMemcpyDeviceToHost));
      kept_ = std::move(kept);
      kept_begin_ = begin;
    }
    return ReleaseMemory(keep_live);
  }
  absl::Status Restore() override {
    if (bytes() > 0) return absl::OkStatus();
    const bool keeps = kept_.bytes() > 0;
    SYNCOPATE_RETURN_IF_ERROR(RestoreMemory(/*with_base=*/keeps && kept_begin_ == 0));
    if (!keeps) return absl::OkStatus();
    char* const to = const_cast<char*>(live()) + kept_begin_;
    SYNCOPATE_RETURN_IF_ERROR(CopyWeights(device_, to, kept_.data(), kept_.bytes(), cudaMemcpyHostToDevice));
    kept_ = cuda::PinnedBuffer();
    return absl::OkStatus();
  }

 protected:
  // Release or allocate the memory of all sets; their addresses stay the same. Each does nothing if it is done.
  virtual absl::Status ReleaseMemory(bool keep_live) = 0;
  virtual absl::Status RestoreMemory(bool with_base) = 0;
  // The first byte of the live set that a Release() has to keep on the host: what lies before it stays where it is, or is
  // not there.
  virtual int64_t KeptBegin() const { return 0; }

 private:
  const int device_;
  const int64_t set_bytes_;
  cuda::PinnedBuffer kept_;  // the live weights from kept_begin_ on, while their memory is released
  int64_t kept_begin_ = 0;
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
  absl::Status ReleaseMemory(bool) override {
    MutexLock lock(&mutex_);
    return arenas_->Release();
  }
  absl::Status RestoreMemory(bool) override {
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
  absl::Status ReleaseMemory(bool) override { return arena_->Release(); }
  absl::Status RestoreMemory(bool) override { return arena_->Restore(); }

 private:
  const std::unique_ptr<cuda::ReleasableArena> arena_;
};

// Adapter sets: three address ranges [base | adapters], which all begin with the same memory of the base. With `maps_base`
// that memory may be the trainer's.
class CudaBackend::Adapted final : public Arenas {
 public:
  static absl::StatusOr<std::unique_ptr<Arenas>> Create(const model::ModelConfig& config, const Manifest& manifest,
                                                        at::Device device, bool maps_base,
                                                        std::unique_ptr<CudaShadowChecker> checker) {
    const int64_t base = manifest.adapters_begin();
    if (base % Manifest::kMappingBytes != 0) {
      return Error(absl::StatusCode::kInvalidArgument, "BAD_MODEL", "adapters do not begin where memory can be mapped");
    }
    SYNCOPATE_ASSIGN_OR_RETURN(auto memory, CudaSharedBase::Create({.device = device.index(),
                                                                    .ranges = AdapterSets::kSets,
                                                                    .base_bytes = base,
                                                                    .rest_bytes = manifest.arena_bytes() - base,
                                                                    .maps = maps_base}));
    std::vector<model::TransformerWeights> views;
    for (int32_t set = 0; set < AdapterSets::kSets; ++set) {
      views.push_back(ViewsAt(config, manifest, memory->range(set), device));
    }
    SYNCOPATE_ASSIGN_OR_RETURN(auto copies, cuda::Stream::Create(device.index()));
    return std::unique_ptr<Arenas>(new Adapted(manifest, device.index(), maps_base, std::move(memory), std::move(views),
                                               std::move(copies), std::move(checker)));
  }

  char* shadow() override {
    const int32_t set = shadow_;
    return set == AdapterSets::kNone ? nullptr : memory_->range(set);
  }
  const char* live() const override { return memory_->range(live_); }
  int64_t bytes() const override { return memory_->own_bytes(); }
  const model::TransformerWeights& weights() const override { return views_[static_cast<size_t>(live_.load())]; }
  int32_t adapter_sets() const override { return AdapterSets::kSets; }
  const model::TransformerWeights& weights_of(int32_t set) const override {
    return set == kNoSet ? base_ : views_[static_cast<size_t>(set)];
  }
  void ChooseShadow(int32_t set) override { shadow_ = set; }
  int32_t shadow_set() const override { return shadow_; }
  bool maps_base() const override { return maps_base_; }
  absl::Status MapBase(synchronizer::LentMemory memory) override {
    ++bases_;
    return memory_->Map(std::move(memory));
  }
  absl::Status OwnBase() override {
    ++bases_;
    return memory_->Own();
  }
  AdapterPlaces::Contents adapter_contents() const override {
    AdapterPlaces::Contents contents;
    for (size_t set = 0; set < contents.size(); ++set) contents[set] = installs_[set] + bases_;  // both only grow
    return contents;
  }

  // The plans that are under way read other sets, so this waits for none of them.
  absl::Status Exchange(const PolicyVersion&, uint64_t, absl::Duration) override {
    const int32_t set = shadow_.load();
    SYNCOPATE_CHECK(set != AdapterSets::kNone);
    if (!memory_->has_base()) {
      return Error(absl::StatusCode::kFailedPrecondition, "BASE_LACKING", "there is no base to serve adapters with");
    }
    ++installs_[static_cast<size_t>(set)];
    shadow_ = AdapterSets::kNone;
    live_ = set;
    return absl::OkStatus();
  }
  absl::Status CopyLive(const std::vector<ByteRange>& ranges) override {
    constexpr char kWhat[] = "copying the live adapters to the shadow";
    const cuda::DeviceScope scope(copies_.device());
    for (const ByteRange& range : ranges) {
      const int64_t begin = std::max(range.begin, base_bytes_);  // the base is the same memory
      if (begin >= range.end) continue;
      SYNCOPATE_RETURN_IF_ERROR(
          cuda::CudaStatus(cudaMemcpyAsync(shadow() + begin, live() + begin, static_cast<size_t>(range.end - begin),
                                           cudaMemcpyDeviceToDevice, copies_.get()),
                           kWhat));
    }
    return cuda::CudaStatus(cudaStreamSynchronize(copies_.get()), kWhat);
  }
  absl::StatusOr<ExportedMemory> ExportShadow() const override {
    return Error(absl::StatusCode::kFailedPrecondition, "NOT_LENT", "adapter sets are not lent");
  }

 protected:
  // A base that is mapped takes no memory of this process: it stays where the live weights are kept.
  absl::Status ReleaseMemory(bool keep_live) override { return memory_->Release(/*keep_lent=*/keep_live); }
  absl::Status RestoreMemory(bool with_base) override {
    ++bases_;
    return memory_->Restore(with_base);
  }
  int64_t KeptBegin() const override { return memory_->owns_base() ? 0 : base_bytes_; }

 private:
  Adapted(const Manifest& manifest, int device, bool maps_base, std::unique_ptr<CudaSharedBase> memory,
          std::vector<model::TransformerWeights> views, cuda::Stream copies, std::unique_ptr<CudaShadowChecker> checker)
      : Arenas(device, manifest.arena_bytes(), views.front(), std::move(checker)),
        base_bytes_(manifest.adapters_begin()),
        maps_base_(maps_base),
        memory_(std::move(memory)),
        views_(std::move(views)),
        base_(model::WithoutAdapters(views_.front())),
        copies_(std::move(copies)) {}

  const int64_t base_bytes_;
  const bool maps_base_;
  const std::unique_ptr<CudaSharedBase> memory_;
  const std::vector<model::TransformerWeights> views_;  // by set
  const model::TransformerWeights base_;
  const cuda::Stream copies_;
  std::array<std::atomic<int64_t>, AdapterSets::kSets> installs_ = {};  // by set
  std::atomic<int64_t> bases_ = 0;  // times that the base's memory became another one
  std::atomic<int32_t> live_ = 0;
  std::atomic<int32_t> shadow_ = 1;
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
  if (manifest.adapters_begin() < manifest.arena_bytes()) {
    const bool maps_base = install == CudaInstall::kMappedBase;
    install = CudaInstall::kRemap;  // adapter sets have no second base: nothing is lent to one
    SYNCOPATE_ASSIGN_OR_RETURN(arenas, Adapted::Create(config, manifest, place, maps_base, std::move(checker)));
  } else if (install != CudaInstall::kInPlace) {
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
  return std::shared_ptr<CudaBackend>(
      new CudaBackend(config, manifest.tensors().front().dtype, place, std::move(arenas), install, memory, ranks));
}

CudaBackend::CudaBackend(const model::ModelConfig& config, DType dtype, at::Device device,
                         std::unique_ptr<Arenas> arenas, CudaInstall install, CudaMemoryUse memory, NcclGroup* ranks)
    : config_(config),
      dtype_(dtype),
      device_(device),
      arenas_(std::move(arenas)),
      install_(install),
      memory_(memory),
      group_(ranks),
      ranks_(ranks != nullptr ? std::make_unique<NcclDeviceRanks>(ranks, device.index()) : nullptr) {}

CudaBackend::~CudaBackend() = default;

WeightArenas& CudaBackend::arenas() { return *arenas_; }

// A larger pass uses the GPU better, but all decoding sequences, and an install, wait for its end.
int64_t CudaBackend::prefill_tokens(bool deterministic) const {
  constexpr int64_t kLeast = 4096, kMost = 16384;
  constexpr double kOperations = 0.05 * 500e12;  // the operations that an H100 does in 50 ms
  if (deterministic || !MakeViews().ok()) return kLeast;
  const int64_t weights = config_.num_hidden_layers * config_.hidden_size *
                          (2 * config_.query_size() + 2 * config_.key_value_size() + 3 * config_.intermediate_size);
  int64_t tokens = kLeast;
  while (tokens < kMost && 2.0 * static_cast<double>(2 * tokens * weights) <= kOperations) tokens *= 2;
  return tokens;
}

absl::StatusOr<DecodeViews> CudaBackend::MakeViews() const {
  std::vector<const model::TransformerWeights*> sets;
  for (int32_t set = 0; set < std::max(arenas_->adapter_sets(), 1); ++set) sets.push_back(&arenas_->weights_of(set));
  return ViewForDecoding(config_, sets);
}

// Both runners keep keys and values in the data type of the weights.
int64_t CudaBackend::kv_block_bytes() const {
  return config_.num_hidden_layers * 2 * kBlockTokens * config_.key_value_size() * DTypeBytes(dtype_);
}

absl::StatusOr<std::unique_ptr<ModelRunner>> CudaBackend::MakeRunner(const RunnerOptions& options) {
  const absl::StatusOr<DecodeViews> views = MakeViews();
  const bool may_lend = install_ == CudaInstall::kBorrowed || install_ == CudaInstall::kAuto;
  if (views.ok()) {
    CudaModelRunner::Options runner{.device = device_.index(),
                                    .memory_share = memory_.share,
                                    .others_bytes = memory_.others_bytes,
                                    .runner = options};
    if (ranks_ != nullptr) {
      runner.ranks = ranks_.get();
      runner.agree_on_least = [this](int64_t mine) { return ranks_->AgreeOnLeast(mine); };
    }
    if (config_.lora.enabled()) {
      runner.adapter_contents = [this] { return arenas_->adapter_contents(); };
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
                                       .plans_under_way = std::max(1, options.plans_under_way),
                                       .serves_base = config_.lora.enabled()};
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
