#include "rollouter/engine/engine_backend.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "rollouter/engine/host_kv_store.h"
#include "rollouter/engine/host_model_runner.h"
#include "synchronizer/transport/host_shadow_check.h"

namespace syncopate::rollouter {

class HostBackend::Arenas final : public WeightArenas {
 public:
  Arenas(const model::ModelConfig& config, const Manifest& manifest, DType dtype) {
    for (int i = 0; i < 2; ++i) {
      arenas_[i] = at::zeros({manifest.arena_bytes() / DTypeBytes(dtype)}, model::ScalarTypeOf(dtype));
      views_[i] = model::ViewWeights(config, manifest, arenas_[i]);
    }
  }

  char* shadow() override { return static_cast<char*>(arenas_[1 - live_].data_ptr()); }
  const char* live() const override { return static_cast<const char*>(arenas_[live_].data_ptr()); }
  int64_t bytes() const override { return static_cast<int64_t>(2 * arenas_[0].nbytes()); }
  const model::TransformerWeights& weights() const override { return views_[live_]; }

  absl::Status Exchange(const PolicyVersion&, uint64_t, absl::Duration) override {
    live_ = 1 - live_;
    return absl::OkStatus();
  }
  absl::Status CopyLive(const std::vector<ByteRange>& ranges) override {
    for (const ByteRange& range : ranges) {
      std::memcpy(shadow() + range.begin, live() + range.begin, static_cast<size_t>(range.size()));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> BeginCheck(
      synchronizer::ShadowContents contents) override {
    return std::make_unique<synchronizer::HostShadowCheck>(shadow(), std::move(contents));
  }

 private:
  std::array<at::Tensor, 2> arenas_;
  std::array<model::TransformerWeights, 2> views_;
  int live_ = 0;
};

HostBackend::HostBackend(const model::ModelConfig& config, const Manifest& manifest)
    : config_(config),
      dtype_(manifest.tensors().front().dtype),
      arenas_(std::make_unique<Arenas>(config, manifest, dtype_)) {}

HostBackend::~HostBackend() = default;

WeightArenas& HostBackend::arenas() { return *arenas_; }

absl::StatusOr<std::unique_ptr<ModelRunner>> HostBackend::MakeRunner(const RunnerOptions& options) {
  const ModelRunner::Capacity capacity{.blocks = options.blocks > 0 ? options.blocks : options.BlocksForAll(),
                                       .host_blocks = options.host_blocks,
                                       .plans_under_way = std::max(1, options.plans_under_way)};
  auto store = std::make_unique<HostKvStore>(config_, capacity.blocks, capacity.host_blocks);
  return std::make_unique<HostModelRunner>(config_, &arenas(), std::move(store), device(), options.max_sequences,
                                           capacity);
}

}  // namespace syncopate::rollouter
