#include "bench/endpoint/paced_backend.h"

#include <time.h>

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "rollouter/engine/engine_backend.h"

namespace syncopate::bench {
namespace {

using rollouter::ModelRunner;
using rollouter::RunnerOptions;
using rollouter::StepPlan;
using rollouter::StepResult;

class PacedRunner final : public ModelRunner {
 public:
  PacedRunner(const RunnerOptions& options, absl::Duration interval)
      : blocks_(options.blocks > 0 ? options.blocks : options.BlocksForAll()), interval_(interval) {}

  Capacity capacity() const override { return {.blocks = blocks_}; }
  int64_t kv_bytes() const override { return 0; }
  int64_t host_kv_bytes() const override { return 0; }
  absl::Status ReleaseBlocks() override { return absl::OkStatus(); }
  absl::Status RestoreBlocks() override { return absl::OkStatus(); }

  absl::StatusOr<Ticket> Launch(const StepPlan& plan) override {
    const auto draws = static_cast<size_t>(plan.draws());
    StepResult result;
    result.plan = plan.id;
    result.version = plan.version;
    result.tokens.resize(draws);
    result.logprobs.resize(draws);
    launched_.push_back(std::move(result));
    return Ticket{plan.id};
  }

  absl::StatusOr<StepResult> Await(const Ticket& /*ticket*/) override {
    // A step that comes late does not make the later ones faster.
    if (interval_ > absl::ZeroDuration()) {
      const absl::Time now = absl::Now();
      next_ = std::max(next_ + interval_, now);
      absl::SleepFor(next_ - now);
    }
    StepResult result = std::move(launched_.front());
    launched_.pop_front();
    const int32_t stamp = NowStamp();
    for (int32_t& token : result.tokens) token = stamp;
    return result;
  }

 private:
  const int64_t blocks_;
  const absl::Duration interval_;
  absl::Time next_ = absl::InfinitePast();
  std::deque<StepResult> launched_;
};

class PacedBackend final : public rollouter::EngineBackend {
 public:
  PacedBackend(const model::ModelConfig& model, absl::Duration interval)
      : host_(model, *model::MakeManifest(model, DType::kFloat32)), interval_(interval) {}
  at::Device device() const override { return host_.device(); }
  DType dtype() const override { return host_.dtype(); }
  rollouter::WeightArenas& arenas() override { return host_.arenas(); }
  int64_t kv_block_bytes() const override { return host_.kv_block_bytes(); }
  absl::StatusOr<std::unique_ptr<ModelRunner>> MakeRunner(const RunnerOptions& options) override {
    return std::make_unique<PacedRunner>(options, interval_);
  }

 private:
  rollouter::HostBackend host_;
  const absl::Duration interval_;
};

}  // namespace

int32_t NowStamp() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int32_t>((int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000) & 0x7fffffff);
}

model::ModelConfig PacedModel(int64_t context) {
  model::ModelConfig model;
  model.vocab_size = 16;
  model.hidden_size = model.intermediate_size = model.head_dim = 8;
  model.num_hidden_layers = model.num_attention_heads = model.num_key_value_heads = 1;
  model.max_position_embeddings = context;
  return model;
}

std::shared_ptr<rollouter::EngineBackend> MakePacedBackend(const model::ModelConfig& model, absl::Duration interval) {
  return std::make_shared<PacedBackend>(model, interval);
}

}  // namespace syncopate::bench
