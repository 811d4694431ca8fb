#include "rollouter/engine/engine_backend.h"

#include <array>
#include <cstring>
#include <utility>

#include "rollouter/engine/host_attention.h"
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

std::unique_ptr<model::Attention> HostBackend::MakeAttention(KvCache& cache, std::vector<RowPlace> rows) {
  return std::make_unique<HostAttention>(config_, cache, std::move(rows));
}

}  // namespace syncopate::rollouter
