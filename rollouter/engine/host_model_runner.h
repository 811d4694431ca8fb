#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "model/device_stream.h"
#include "model/transformer.h"
#include "rollouter/engine/kv_store.h"
#include "rollouter/engine/model_runner.h"
#include "rollouter/engine/rank_sums.h"
#include "rollouter/engine/sampler.h"

namespace syncopate::rollouter {

class WeightArenas;
struct RunnerOptions;

// The reference runner: model::Transformer on any device, and the sampler on the host. Launch() does all the work and
// blocks for it. On the CPU the bits of a row depend only on its own tokens and the weights, for the tested matrix
// sizes: batches are padded to Transformer::kMinRows rows, and attention walks the row's own blocks.
class HostModelRunner final : public ModelRunner {
 public:
  // `arenas` must outlive this runner; `store` is on `device` and has as many blocks as `capacity` says. With
  // RunnerOptions::deterministic every pass has kFixedRows rows, so that the library selects the same kernel each time.
  // `ranks`: this is one rank of a replica, and `config`, weights and store are its slice of the model; null: the whole
  // model. All ranks launch the same plans; rank 0 draws.
  HostModelRunner(const model::ModelConfig& config, WeightArenas* arenas, std::unique_ptr<KvStore> store,
                  at::Device device, const RunnerOptions& options, const Capacity& capacity,
                  Communicator* ranks = nullptr);

  Capacity capacity() const override { return capacity_; }
  int64_t kv_bytes() const override { return store_->bytes(); }
  int64_t host_kv_bytes() const override { return store_->host_bytes(); }
  int64_t buffer_bytes() const override;
  absl::Status ReleaseBlocks() override;
  absl::Status RestoreBlocks() override;
  // Memory is allocated when a block is used, so ReturnBlocks() has nothing to do.
  absl::Status LendBlocks() override {
    store_->FreeFrom(static_cast<BlockIndex>(capacity_.blocks - capacity_.lent_blocks));
    return absl::OkStatus();
  }
  void BindThread() override { stream_.emplace(device_); }
  void UnbindThread() override { stream_.reset(); }
  absl::StatusOr<Ticket> Launch(const StepPlan& plan) override;
  absl::StatusOr<StepResult> Await(const Ticket& ticket) override;
  absl::Status Synchronize() override;

 private:
  struct Slot {
    uint64_t seed = 0;
    std::shared_ptr<const SamplingParams> sampling;
    int64_t drawn = 0;
    int32_t last_token = 0;
    std::optional<TokenCounts> counts;  // set if its penalties need counts
    std::vector<BlockIndex> table;
    int64_t adapter = 0;  // see SlotStart
  };
  // The rows of a plan that the same weights compute, and which rows give tokens to which slots.
  struct Batch {
    struct Draw {
      size_t number = 0;  // in the plan
      SlotIndex slot = 0;
      int64_t logits_row = 0;
    };
    std::vector<int64_t> ids;
    KvBatch kv;
    std::vector<int64_t> sampled_rows;  // the rows whose logits are needed
    std::vector<Draw> draws;
  };

  static constexpr int64_t kFixedRows = 64;

  void StartSlot(const SlotStart& start);
  // The rows of the sequences that the adapter set computes; kNoSet: those of the base.
  Batch MakeBatch(const StepPlan& plan, int32_t set) const;
  bool IsOf(SlotIndex slot, const StepPlan& plan, int32_t set) const {
    return GetAdapterSet(slots_[static_cast<size_t>(slot)].adapter, plan.live_set) == set;
  }
  void Pad(Batch& batch) const;
  // Returns the logits of the sampled rows, float32 on the CPU; an empty tensor on ranks that do not lead.
  at::Tensor Forward(const model::TransformerWeights& weights, Batch& batch);
  at::Tensor ForwardInPasses(const model::TransformerWeights& weights, const Batch& batch);
  absl::Status Execute(const StepPlan& plan, StepResult& result);
  // Copies rank 0's draws to the slots of every rank. `slots`: by number of the draw.
  absl::Status ShareDraws(const std::vector<SlotIndex>& slots, StepResult& result);
  bool leads() const { return !group_.has_value() || group_->leads(); }
  void Draw(SlotIndex index, const float* logits, StepResult& result);

  const model::Transformer transformer_;
  WeightArenas* const arenas_;
  const std::unique_ptr<KvStore> store_;
  const at::Device device_;
  const Capacity capacity_;
  const bool fixed_rows_;  // every pass has kFixedRows rows
  const std::vector<BlockIndex> padding_table_;
  std::vector<Slot> slots_;
  std::deque<StepResult> done_;  // results that were not awaited yet
  std::optional<RankSums> group_;
  std::optional<model::DeviceStream> stream_;
};

}  // namespace syncopate::rollouter
