#include "rollouter/engine/engine_backend.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/device.h"
#include "model/torch_error.h"
#include "rollouter/engine/adapter_sets.h"
#include "rollouter/engine/engine_loop.h"
#include "rollouter/engine/host_kv_store.h"
#include "rollouter/engine/host_model_runner.h"
#include "synchronizer/transport/host_shadow_check.h"
#include "synchronizer/transport/shared_base_memory.h"

namespace syncopate::rollouter {

using synchronizer::SharedBaseMemory;

class HostBackend::Arenas final : public WeightArenas {
 public:
  Arenas(const model::ModelConfig& config, const Manifest& manifest, HostInstall install)
      : config_(config), manifest_(manifest), install_(install) {
    AllocateMissing();
  }

  char* shadow() override { return Data(Other()); }
  const char* live() const override { return Data(live_); }
  int64_t bytes() const override {
    int64_t allocated = 0;
    for (const at::Tensor& arena : arenas_) allocated += arena.defined() ? static_cast<int64_t>(arena.nbytes()) : 0;
    return allocated;
  }
  bool in_place() const override { return install_ == HostInstall::kInPlace; }
  int64_t borrowed_bytes() const override { return borrows() ? manifest_.arena_bytes() : 0; }
  absl::Status TakeShadow() override {
    return borrows() ? Allocate([this] { AllocateSet(Other()); }) : absl::OkStatus();
  }
  absl::Status DropShadow() override {
    if (borrows()) FreeSet(Other());
    return absl::OkStatus();
  }
  const model::TransformerWeights& weights() const override { return views_[live_]; }

  absl::Status Exchange(const PolicyVersion&, uint64_t, absl::Duration) override {
    // Both sets are ordinary memory, so the exchange is a change of index.
    live_ = Other();
    return absl::OkStatus();
  }
  absl::Status CopyLive(const std::vector<ByteRange>& ranges) override {
    for (const ByteRange& range : ranges) {
      // With one weight set nothing calls CopyLive (WeightReceiver::KeepBase), so source and target are different sets.
      std::memcpy(shadow() + range.begin, live() + range.begin, static_cast<size_t>(range.size()));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> BeginCheck(
      synchronizer::ShadowContents contents) override {
    return std::make_unique<synchronizer::HostShadowCheck>(shadow(), std::move(contents));
  }
  // Kept weights stay where they are: they are already in host memory.
  absl::Status Release(bool keep_live) override {
    for (int set : {0, 1}) {
      if (!keep_live || set != live_) FreeSet(set);
    }
    return absl::OkStatus();
  }
  absl::Status Restore() override {
    return Allocate([this] { AllocateMissing(); });
  }

 private:
  bool borrows() const { return install_ == HostInstall::kBorrowed; }
  int Other() const { return in_place() ? live_ : 1 - live_; }
  char* Data(int set) const { return arenas_[set].defined() ? static_cast<char*>(arenas_[set].data_ptr()) : nullptr; }
  template <typename Function>
  absl::Status Allocate(const Function& function) {
    try {
      function();
      return absl::OkStatus();
    } catch (const std::exception& error) {
      return model::TorchError(error, absl::StrCat("a weight set needs ", manifest_.arena_bytes() >> 20, " MiB"));
    }
  }
  void AllocateMissing() {
    AllocateSet(live_);
    if (!borrows()) AllocateSet(Other());
  }
  void AllocateSet(int set) {
    if (arenas_[set].defined()) return;
    const DType dtype = manifest_.tensors().front().dtype;
    arenas_[set] = at::zeros({manifest_.arena_bytes() / DTypeBytes(dtype)}, model::ToScalarType(dtype));
    views_[set] = model::ViewWeights(config_, manifest_, arenas_[set]);
  }
  void FreeSet(int set) {
    arenas_[set] = at::Tensor();
    views_[set] = model::TransformerWeights();
  }

  const model::ModelConfig config_;
  const Manifest manifest_;
  const HostInstall install_;
  std::array<at::Tensor, 2> arenas_;
  std::array<model::TransformerWeights, 2> views_;
  int live_ = 0;
};

// One base, which memory of its own begins each of three address ranges with, and behind it the adapters of each set.
class HostBackend::AdapterArenas final : public WeightArenas {
 public:
  AdapterArenas(const model::ModelConfig& config, const Manifest& manifest, bool maps_base)
      : config_(config),
        manifest_(manifest),
        maps_base_(maps_base),
        memory_(AdapterSets::kSets, {.base = manifest.adapters_begin(), .range = manifest.arena_bytes()},
                maps_base ? SharedBaseMemory::Base::kOnDemand : SharedBaseMemory::Base::kAlways) {
    for (int32_t set = 0; set < AdapterSets::kSets; ++set) {
      const DType dtype = manifest.tensors().front().dtype;
      const at::Tensor arena =
          at::from_blob(memory_.range(set), {manifest.arena_bytes() / DTypeBytes(dtype)}, model::ToScalarType(dtype));
      views_.push_back(model::ViewWeights(config, manifest, arena));
    }
    base_ = model::WithoutAdapters(views_.front());
  }

  char* shadow() override {
    const int32_t set = shadow_;
    return set == AdapterSets::kNone ? nullptr : memory_.range(set);
  }
  const char* live() const override { return memory_.range(live_); }
  int64_t bytes() const override { return memory_.own_bytes(); }
  const model::TransformerWeights& weights() const override { return views_[static_cast<size_t>(live_)]; }
  int32_t adapter_sets() const override { return AdapterSets::kSets; }
  const model::TransformerWeights& weights_of(int32_t set) const override {
    return set == kNoSet ? base_ : views_[static_cast<size_t>(set)];
  }
  void ChooseShadow(int32_t set) override { shadow_ = set; }
  int32_t shadow_set() const override { return shadow_; }
  bool maps_base() const override { return maps_base_; }
  absl::Status MapBase(synchronizer::LentMemory memory) override { return memory_.Map(std::move(memory)); }
  absl::Status OwnBase() override { return memory_.Own(); }

  absl::Status Exchange(const PolicyVersion&, uint64_t, absl::Duration) override {
    live_ = shadow_.exchange(AdapterSets::kNone);
    SYNCOPATE_CHECK(live_ != AdapterSets::kNone);
    return absl::OkStatus();
  }
  absl::Status CopyLive(const std::vector<ByteRange>& ranges) override {
    for (const ByteRange& range : ranges) {
      // The base is the same memory.
      const int64_t begin = std::max(range.begin, manifest_.adapters_begin());
      if (begin >= range.end) continue;
      std::memcpy(shadow() + begin, live() + begin, static_cast<size_t>(range.end - begin));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> BeginCheck(
      synchronizer::ShadowContents contents) override {
    return std::make_unique<synchronizer::HostShadowCheck>(shadow(), std::move(contents));
  }
  absl::Status Release(bool keep_live) override {
    return memory_.Release(keep_live ? std::optional<int32_t>(live_) : std::nullopt);
  }
  absl::Status Restore() override { return memory_.Restore(); }

 private:
  const model::ModelConfig config_;
  const Manifest manifest_;
  const bool maps_base_;
  SharedBaseMemory memory_;
  std::vector<model::TransformerWeights> views_;  // by set
  model::TransformerWeights base_;
  std::atomic<int32_t> live_ = 0;
  std::atomic<int32_t> shadow_ = 1;
};

std::unique_ptr<WeightArenas> HostBackend::MakeArenas(const model::ModelConfig& config, const Manifest& manifest,
                                                      HostInstall install) {
  // A manifest that says nothing of adapters (model::MakeManifest) has them in the midst of the base's buckets and
  // pages.
  if (manifest.adapters_begin() < manifest.arena_bytes()) {
    return std::make_unique<AdapterArenas>(config, manifest, install == HostInstall::kMappedBase);
  }
  return std::make_unique<Arenas>(config, manifest, install);
}

HostBackend::HostBackend(const model::ModelConfig& config, const Manifest& manifest, HostInstall install,
                         Communicator* ranks)
    : config_(config),
      dtype_(manifest.tensors().front().dtype),
      arenas_(MakeArenas(config, manifest, install)),
      ranks_(ranks) {}

namespace {

absl::StatusOr<std::shared_ptr<EngineBackend>> MakeHostBackend(const model::ModelConfig& config,
                                                               const Manifest& manifest, HostInstall install,
                                                               Communicator* ranks) {
  try {
    return std::make_shared<HostBackend>(config, manifest, install, ranks);
  } catch (const std::exception& error) {
    const int64_t sets = install == HostInstall::kSwap ? 2 : 1;
    return model::TorchError(error, absl::StrCat("the weights need ", sets * manifest.arena_bytes() >> 20, " MiB"));
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<EngineBackend>> MakeInPlaceHostBackend(const model::ModelConfig& config,
                                                                      const Manifest& manifest) {
  return MakeHostBackend(config, manifest, HostInstall::kInPlace, /*ranks=*/nullptr);
}

absl::StatusOr<std::shared_ptr<EngineBackend>> MakeBorrowingHostBackend(const model::ModelConfig& config,
                                                                        const Manifest& manifest) {
  return MakeHostBackend(config, manifest, HostInstall::kBorrowed, /*ranks=*/nullptr);
}

absl::StatusOr<std::shared_ptr<EngineBackend>> MakeMappingHostBackend(const model::ModelConfig& config,
                                                                      const Manifest& manifest) {
  return MakeHostBackend(config, manifest, HostInstall::kMappedBase, /*ranks=*/nullptr);
}

absl::StatusOr<std::shared_ptr<EngineBackend>> MakeHostRankBackend(const model::ModelConfig& config,
                                                                   const Manifest& manifest, int weight_sets,
                                                                   Communicator* ranks) {
  return MakeHostBackend(config, manifest, weight_sets == 1 ? HostInstall::kInPlace : HostInstall::kSwap, ranks);
}

HostBackend::~HostBackend() = default;

WeightArenas& HostBackend::arenas() { return *arenas_; }

int64_t HostBackend::kv_block_bytes() const { return HostKvStore::BlockBytes(config_); }

absl::StatusOr<std::unique_ptr<ModelRunner>> HostBackend::MakeRunner(const RunnerOptions& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(const LentBlocks lent, HostKvStore::FindLent(config_, options));
  const ModelRunner::Capacity capacity{.blocks = lent.blocks,
                                       .host_blocks = options.host_blocks,
                                       .lent_blocks = lent.lent,
                                       // The host runner does all work in Launch, so more plans in progress do not help
                                       // by default.
                                       .plans_under_way = std::max(1, options.plans_under_way),
                                       .serves_base = config_.lora.enabled()};
  SYNCOPATE_ASSIGN_OR_RETURN(SwapSpace swapped, SwapSpace::Take(capacity.host_blocks * kv_block_bytes()));
  auto store = std::make_unique<HostKvStore>(config_, capacity.blocks, std::move(swapped));
  return std::make_unique<HostModelRunner>(config_, &arenas(), std::move(store), device(), options, capacity, ranks_);
}

void EmptyCache(const EngineBackend& backend) {
  const at::Device device = backend.device();
  if (device.is_cuda()) model::EmptyAllocator(device.str());
}

}  // namespace syncopate::rollouter
