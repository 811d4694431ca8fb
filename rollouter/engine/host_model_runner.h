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

// The reference: model::Transformer on any device, and the sampler on the host. Launch() does all the work. On the CPU the
// bits of a row depend on its own tokens and weights alone, for matrices of the sizes that were tried: batches are padded
// to Transformer::kMinRows rows, and attention walks the row's own blocks.
class HostModelRunner final : public ModelRunner {
 public:
  // `arenas` must outlive it; `store` is on `device` and has as many blocks as `capacity` says.
  // RunnerOptions::deterministic: every product has kFixedRows rows, whatever the library makes of other numbers.
  // `ranks`: this is one rank of a replica, and `config`, weights and store are its slice of the model; null: the whole.
  // All ranks launch the same plans; rank 0 draws.
  HostModelRunner(const model::ModelConfig& config, WeightArenas* arenas, std::unique_ptr<KvStore> store,
                  at::Device device, const RunnerOptions& options, const Capacity& capacity,
                  Communicator* ranks = nullptr);

  Capacity capacity() const override { return capacity_; }
  int64_t kv_bytes() const override { return store_->bytes(); }
  absl::Status ReleaseBlocks() override;
  absl::Status RestoreBlocks() override;
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
    std::optional<TokenCounts> counts;  // if its penalties need them
    std::vector<BlockIndex> table;
  };
  // One forward pass: its rows, and which of them give tokens to which slots.
  struct Batch {
    struct Draw {
      SlotIndex slot = 0;
      int64_t logits_row = 0;
    };
    std::vector<int64_t> ids;
    KvBatch kv;
    std::vector<int64_t> sampled_rows;  // rows whose logits are needed
    std::vector<Draw> draws;
  };

  static constexpr int64_t kFixedRows = 64;

  void StartSlot(const SlotStart& start);
  Batch MakeBatch(const StepPlan& plan) const;
  void Pad(Batch& batch) const;
  // Logits of the sampled rows, float32 on the CPU.
  at::Tensor Forward(Batch& batch);
  at::Tensor ForwardInPasses(const Batch& batch);
  absl::Status Execute(const StepPlan& plan, StepResult& result);
  // What rank 0 drew becomes what every rank's slots drew last.
  absl::Status ShareDraws(const Batch& batch, StepResult& result);
  bool leads() const { return !group_.has_value() || group_->leads(); }
  void Draw(const Batch::Draw& draw, const float* logits, StepResult& result);

  const model::Transformer transformer_;
  WeightArenas* const arenas_;
  const std::unique_ptr<KvStore> store_;
  const at::Device device_;
  const Capacity capacity_;
  const bool fixed_rows_;  // every pass has kFixedRows
  const std::vector<BlockIndex> padding_table_;
  std::vector<Slot> slots_;
  std::deque<StepResult> done_;  // not awaited yet
  std::optional<RankSums> group_;
  std::optional<model::DeviceStream> stream_;
};

}  // namespace syncopate::rollouter
