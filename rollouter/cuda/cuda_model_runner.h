#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "cuda/lending_arena.h"
#include "cuda/stream.h"
#include "rollouter/cuda/decode/block_kernels.h"
#include "rollouter/cuda/decode/graph_decoder.h"
#include "rollouter/cuda/decode_views.h"
#include "rollouter/cuda/slot_filters.h"
#include "rollouter/engine/adapter_places.h"
#include "rollouter/engine/engine_backend.h"
#include "rollouter/engine/kv_parts.h"
#include "rollouter/engine/model_runner.h"

namespace syncopate::rollouter {

// Executes plans as CUDA graphs of our own kernels, one step ahead of the host: bf16, head sizes 64 and 128. All
// sampling options run on the device, and drawn tokens are fed back there. Only for top_logprobs the logits of the rows
// that ask are copied to the host.
class CudaModelRunner final : public ModelRunner {
 public:
  struct Options {
    int device = 0;
    double memory_share = 0.9;  // see KvBudget
    int64_t others_bytes = 0;   // see CudaMemoryUse
    RunnerOptions runner;
    // See GraphDecoder::Options::ranks. If set, agree_on_least(n) returns the least n that any rank passes; the runner
    // uses it for the number of blocks.
    DeviceRanks* ranks = nullptr;
    std::function<absl::StatusOr<int64_t>(int64_t)> agree_on_least = nullptr;
    // Not kNever: the weights have one set yet, and keys and values may lend `set_bytes` (as mapped) to a second one.
    // add_set(lends) is called when that is decided, before keys and values are allocated. If it lends, lent_memory()
    // returns the memory that does not serve; LendBlocks() unmaps it here, ReturnBlocks() maps it. Not with `ranks`.
    KvLending lending = KvLending::kNever;
    int64_t set_bytes = 0;
    std::function<absl::Status(bool lends)> add_set = nullptr;
    std::function<const cuda::GpuMemoryBlock&()> lent_memory = nullptr;
    // Set if the model has adapters: see AdapterPlaces::Contents.
    std::function<AdapterPlaces::Contents()> adapter_contents = nullptr;
  };
  // `views` has addresses that outlive the runner. INVALID_ARGUMENT (reason BAD_OPTIONS) for bad options, also for
  // determinism over more than two ranks, because NCCL then sums in an order that depends on the batch;
  // RESOURCE_EXHAUSTED (reason OUT_OF_GPU_MEMORY) if not even one sequence has room; otherwise the errors of
  // GraphDecoder::Create.
  static absl::StatusOr<std::unique_ptr<CudaModelRunner>> Create(const model::ModelConfig& config,
                                                                 const DecodeViews& views, const Options& options);

  Capacity capacity() const override { return capacity_; }
  int64_t kv_bytes() const override { return storage_->allocated_bytes(); }
  int64_t host_kv_bytes() const override { return swapped_.bytes(); }
  int64_t buffer_bytes() const override { return decoder_->device_bytes() + packed_scratch_->bytes(); }
  absl::Status ReleaseBlocks() override { return storage_->Release(); }
  absl::Status RestoreBlocks() override { return storage_->Restore(); }
  absl::Status LendBlocks() override { return storage_->UnmapBorrowed(); }
  absl::Status ReturnBlocks() override {
    return parts_.lent_parts == 0 ? absl::OkStatus() : storage_->MapBorrowed(options_.lent_memory());
  }
  absl::StatusOr<Ticket> Launch(const StepPlan& plan) override;
  absl::StatusOr<StepResult> Await(const Ticket& ticket) override;
  absl::Status Synchronize() override;

  static constexpr int64_t kMostSequences = 1024;

 private:
  struct Slot {
    int32_t drawn = 0;        // tokens of the answer, including draws in progress
    int32_t next_token = -1;  // the token that the next row inputs; -1: the token that the device drew last
    int64_t adapter = 0;      // see SlotStart
    std::shared_ptr<const SamplingParams> sampling = nullptr;
    std::unique_ptr<SlotFilters::Lent> filter = nullptr;
  };
  struct UnderWay {
    int64_t plan = 0;
    PolicyVersion version;
    std::vector<std::shared_ptr<const SamplingParams>> draws;  // by number of the draw; null: without top_logprobs
  };

  CudaModelRunner(const Options& options, const DecodeShape& shape, const KvParts& parts, const Capacity& capacity)
      : options_(options),
        shape_(shape),
        parts_(parts),
        capacity_(capacity),
        filters_({.device = options.device, .vocab = shape.vocab, .max_context = options.runner.max_context}),
        slots_(static_cast<size_t>(options.runner.max_sequences)) {}
  absl::Status Allocate(GraphDecoder::Options decoder);
  BlockPlaces DevicePlaces() const;
  BlockPlaces HostPlaces() const;
  absl::Status MoveBlocks(const StepPlan& plan);
  // Queues what puts the adapters of `sets`, which compute the plan's rows, behind the weights, unless they are there.
  absl::Status PlaceAdapters(int32_t live, const std::vector<int32_t>& sets);
  absl::StatusOr<SamplingSetting> StartSlot(const SlotStart& start);
  PassDraw AddDraw(SlotIndex slot, int32_t row, UnderWay& launched);
  bool leads() const { return options_.ranks == nullptr || options_.ranks->rank() == 0; }

  const Options options_;
  const DecodeShape shape_;
  const KvParts parts_;
  const Capacity capacity_;
  std::unique_ptr<cuda::LendingArena> storage_;  // by parts_
  cuda::PinnedBuffer swapped_;                   // host_blocks of keys, then of values
  std::vector<cuda::PinnedBuffer> pairs_;        // blocks to move; one buffer per plan in progress
  std::shared_ptr<const cuda::DeviceBuffer> packed_scratch_;
  SlotFilters filters_;
  AdapterPlaces places_;
  std::unique_ptr<GraphDecoder> decoder_;  // destroyed before the members above: it waits for work that reads them
  std::vector<Slot> slots_;
  std::deque<UnderWay> under_way_;
  int64_t launched_ = 0;
};

}  // namespace syncopate::rollouter
