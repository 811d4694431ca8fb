#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "cuda/releasable_arena.h"
#include "cuda/stream.h"
#include "rollouter/cuda/decode/block_kernels.h"
#include "rollouter/cuda/decode/graph_decoder.h"
#include "rollouter/cuda/decode_views.h"
#include "rollouter/cuda/slot_filters.h"
#include "rollouter/engine/engine_backend.h"
#include "rollouter/engine/model_runner.h"

namespace syncopate::rollouter {

// Plans as graphs of our own kernels, one step ahead of the host: bf16, head sizes 64 and 128. Every option of sampling
// is on the device, and tokens are fed back there; for top_logprobs the logits of the rows that ask are copied to the
// host.
class CudaModelRunner final : public ModelRunner {
 public:
  struct Options {
    int device = 0;
    double memory_share = 0.9;  // see KvBudget
    RunnerOptions runner;
    // As GraphDecoder::Options::ranks; then agree_on_least(n) is the least n that any rank gives, and blocks.
    DeviceRanks* ranks = nullptr;
    std::function<absl::StatusOr<int64_t>(int64_t)> agree_on_least = nullptr;
  };
  // `views` are addresses that outlive it. INVALID_ARGUMENT reason BAD_OPTIONS, also for determinism over more than two
  // ranks, whose sums NCCL makes in an order that depends on the batch; RESOURCE_EXHAUSTED reason
  // OUT_OF_GPU_MEMORY if not one sequence has room; else as GraphDecoder::Create.
  static absl::StatusOr<std::unique_ptr<CudaModelRunner>> Create(const model::ModelConfig& config,
                                                                 const DecodeViews& views, const Options& options);

  Capacity capacity() const override { return capacity_; }
  int64_t kv_bytes() const override { return storage_->held_bytes() + swapped_.bytes(); }
  int64_t buffer_bytes() const override { return decoder_->device_bytes() + packed_scratch_->bytes(); }
  absl::Status ReleaseBlocks() override { return storage_->Release(); }
  absl::Status RestoreBlocks() override { return storage_->Restore(); }
  absl::StatusOr<Ticket> Launch(const StepPlan& plan) override;
  absl::StatusOr<StepResult> Await(const Ticket& ticket) override;
  absl::Status Synchronize() override;

  static constexpr int64_t kMostSequences = 1024;

 private:
  struct Slot {
    int32_t drawn = 0;        // tokens of the answer, those under way included
    int32_t next_token = -1;  // what the next row puts in; -1: what the device drew last
    std::shared_ptr<const SamplingParams> sampling = nullptr;
    std::unique_ptr<SlotFilters::Lent> filter = nullptr;
  };
  struct UnderWay {
    int64_t plan = 0;
    PolicyVersion version;
    std::vector<std::shared_ptr<const SamplingParams>> draws;  // by number; null: without top_logprobs
  };

  CudaModelRunner(const Options& options, const DecodeShape& shape, const Capacity& capacity)
      : options_(options),
        shape_(shape),
        capacity_(capacity),
        filters_({.device = options.device, .vocab = shape.vocab, .max_context = options.runner.max_context}),
        slots_(static_cast<size_t>(options.runner.max_sequences)) {}
  absl::Status Allocate(GraphDecoder::Options decoder);
  BlockPlaces DevicePlaces() const;
  BlockPlaces HostPlaces() const;
  absl::Status MoveBlocks(const StepPlan& plan);
  absl::StatusOr<SamplingSetting> StartSlot(const SlotStart& start);
  PassDraw AddDraw(SlotIndex slot, int32_t row, UnderWay& launched);
  bool leads() const { return options_.ranks == nullptr || options_.ranks->rank() == 0; }

  const Options options_;
  const DecodeShape shape_;
  const Capacity capacity_;
  std::unique_ptr<cuda::ReleasableArena> storage_;  // keys, then values
  cuda::PinnedBuffer swapped_;                      // likewise, host_blocks of them
  std::vector<cuda::PinnedBuffer> pairs_;           // of blocks to move; one a plan that may be under way
  std::shared_ptr<const cuda::DeviceBuffer> packed_scratch_;
  SlotFilters filters_;
  std::unique_ptr<GraphDecoder> decoder_;  // ends first: it waits for what reads the rest
  std::vector<Slot> slots_;
  std::deque<UnderWay> under_way_;
  int64_t launched_ = 0;
};

}  // namespace syncopate::rollouter
