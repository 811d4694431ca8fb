#include "rollouter/engine/engine_backend.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/torch_error.h"
#include "rollouter/engine/engine_loop.h"
#include "rollouter/engine/host_kv_store.h"
#include "rollouter/engine/host_model_runner.h"
#include "synchronizer/transport/host_shadow_check.h"

namespace syncopate::rollouter {

class HostBackend::Arenas final : public WeightArenas {
 public:
  Arenas(const model::ModelConfig& config, const Manifest& manifest, int weight_sets)
      : config_(config), manifest_(manifest), weight_sets_(weight_sets) {
    AllocateMissing();
  }

  char* shadow() override { return Data(Other()); }
  const char* live() const override { return Data(live_); }
  int64_t bytes() const override {
    int64_t allocated = 0;
    for (const at::Tensor& arena : arenas_) allocated += arena.defined() ? static_cast<int64_t>(arena.nbytes()) : 0;
    return allocated;
  }
  bool in_place() const override { return weight_sets_ == 1; }
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
    for (int i = 0; i < weight_sets_; ++i) {
      if (keep_live && i == live_) continue;
      arenas_[i] = at::Tensor();
      views_[i] = model::TransformerWeights();
    }
    return absl::OkStatus();
  }
  absl::Status Restore() override {
    try {
      AllocateMissing();
      return absl::OkStatus();
    } catch (const std::exception& error) {
      return model::TorchError(error, absl::StrCat("a weight set needs ", manifest_.arena_bytes() >> 20, " MiB"));
    }
  }

 private:
  int Other() const { return in_place() ? live_ : 1 - live_; }
  char* Data(int set) const { return arenas_[set].defined() ? static_cast<char*>(arenas_[set].data_ptr()) : nullptr; }
  void AllocateMissing() {
    const DType dtype = manifest_.tensors().front().dtype;
    for (int i = 0; i < weight_sets_; ++i) {
      if (arenas_[i].defined()) continue;
      arenas_[i] = at::zeros({manifest_.arena_bytes() / DTypeBytes(dtype)}, model::ToScalarType(dtype));
      views_[i] = model::ViewWeights(config_, manifest_, arenas_[i]);
    }
  }

  const model::ModelConfig config_;
  const Manifest manifest_;
  const int weight_sets_;
  std::array<at::Tensor, 2> arenas_;
  std::array<model::TransformerWeights, 2> views_;
  int live_ = 0;
};

HostBackend::HostBackend(const model::ModelConfig& config, const Manifest& manifest, int weight_sets,
                         Communicator* ranks)
    : config_(config),
      dtype_(manifest.tensors().front().dtype),
      arenas_(std::make_unique<Arenas>(config, manifest, weight_sets)),
      ranks_(ranks) {}

absl::StatusOr<std::shared_ptr<EngineBackend>> MakeInPlaceHostBackend(const model::ModelConfig& config,
                                                                      const Manifest& manifest) {
  try {
    return std::make_shared<HostBackend>(config, manifest, /*weight_sets=*/1);
  } catch (const std::exception& error) {
    return model::TorchError(error, absl::StrCat("the weights need ", manifest.arena_bytes() >> 20, " MiB"));
  }
}

absl::StatusOr<std::shared_ptr<EngineBackend>> MakeHostRankBackend(const model::ModelConfig& config,
                                                                   const Manifest& manifest, int weight_sets,
                                                                   Communicator* ranks) {
  try {
    return std::make_shared<HostBackend>(config, manifest, weight_sets, ranks);
  } catch (const std::exception& error) {
    return model::TorchError(error,
                             absl::StrCat("the weights need ", weight_sets * manifest.arena_bytes() >> 20, " MiB"));
  }
}

HostBackend::~HostBackend() = default;

WeightArenas& HostBackend::arenas() { return *arenas_; }

int64_t HostBackend::kv_block_bytes() const { return HostKvStore::BlockBytes(config_); }

absl::StatusOr<std::unique_ptr<ModelRunner>> HostBackend::MakeRunner(const RunnerOptions& options) {
  const ModelRunner::Capacity capacity{.blocks = options.blocks > 0 ? options.blocks : options.BlocksForAll(),
                                       .host_blocks = options.host_blocks,
                                       // The host runner does all work in Launch, so more plans in progress do not help
                                       // by default.
                                       .plans_under_way = std::max(1, options.plans_under_way),
                                       .serves_base = config_.lora.enabled()};
  SYNCOPATE_ASSIGN_OR_RETURN(SwapSpace swapped, SwapSpace::Take(capacity.host_blocks * kv_block_bytes()));
  auto store = std::make_unique<HostKvStore>(config_, capacity.blocks, std::move(swapped));
  return std::make_unique<HostModelRunner>(config_, &arenas(), std::move(store), device(), options, capacity, ranks_);
}

}  // namespace syncopate::rollouter
