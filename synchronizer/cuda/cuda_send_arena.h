#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/manifest.h"
#include "base/mutex.h"
#include "base/policy_version.h"
#include "cuda/cuda_arena.h"
#include "cuda/stream.h"
#include "synchronizer/cuda/shard_bases.h"
#include "synchronizer/cuda/stage_program.h"
#include "synchronizer/lent_memory.h"
#include "synchronizer/plan/sync_plan.h"
#include "synchronizer/transport/weight_store.h"

namespace syncopate::synchronizer {

// Reads a version in GPU memory until it is superseded. Pins its slot. Not thread-safe.
class DeviceReader : public WeightReader {
 public:
  // The slot: the plan's send_bytes at data(), complete, in wire order. Other processes map it by id() and Export().
  virtual const cuda::CudaArena& arena() const = 0;
  // OK while the bytes are those of the version; ABORTED reason SUPERSEDED once the memory was taken for a newer
  // version. If this is OK after a copy has ended, the copied bytes are good.
  virtual absl::Status CheckCurrent() const = 0;
};

// A source rank's copies of its newest weights in GPU memory, in wire order. Receivers are served from them while
// training goes on.
//
// If the manifest has adapters, the base is the same in all versions: it is copied once to each slot and digested once,
// and later versions bring the adapters alone.
//
// With Options::lends_base there is one base for all slots. It is written for the first version; from then on no byte of
// it that is sent or digested changes, and one other process may map it and write to the rows that it leaves free
// (TensorSpec::spare_rows).
//
// A slot contains one staged version. Readers pin a slot. Staging takes a slot without pins; if there is none, it takes
// the oldest slot from its readers: they are notified, and their copies no longer count. So the trainer never waits for
// a receiver, only for the copy of at most one chunk to host memory that is in progress. Thread-safe; one thread
// stages.
//
// The memory of slots without readers can leave the device: then page-locked host memory keeps their bytes. Readers on
// the host are served from there; a reader on the device brings the slot back, as does the next stage in it. A base that
// all slots share stays on the device.
class CudaSendArena final : public WeightStore {
 public:
  struct Options {
    int device = 0;
    int slots = 1;
    int64_t chunk_bytes = 0;  // see CudaArena
    // Keeps the base weights once for all slots, in memory that can be lent. Takes what SendArena::LendableBytes takes;
    // else there is a base in each slot, and none is lent.
    bool lends_base = false;
    // With lends_base: memory of the base, of SendArena::LendableBytes, in which the source computes. The first version's
    // shard is there then, and is written onto itself. Null: memory of its own.
    std::shared_ptr<const cuda::CudaArena> base = nullptr;
    const Clock* clock = Clock::Real();
    absl::Status Validate() const;  // INVALID_ARGUMENT reason BAD_OPTIONS unless 1 <= slots <= 16
  };

  // For the bytes that `plan` lets source rank `source` send; a rank may send nothing. Allocates slots x
  // plan.send_bytes(source), in which a base that is lent counts once, and scratch_bytes(). RESOURCE_EXHAUSTED reason
  // OUT_OF_GPU_MEMORY, FAILED_PRECONDITION reason NO_GPU.
  static absl::StatusOr<std::unique_ptr<CudaSendArena>> Create(const Manifest& manifest, const SyncPlan& plan,
                                                               int32_t source, const Options& options);
  ~CudaSendArena() override;  // requires that no reader is left

  // Begins to stage `version` in the order of `stream` (of options.device). The shard at `bases` is read once, by work
  // that is on the stream when this returns; later work on the stream may change it. FAILED_PRECONDITION reason
  // VERSION_ORDER unless `version` is above all versions staged before; STAGING if the previous Launch was not awaited.
  absl::Status Launch(PolicyVersion version, const ShardBases& bases, cudaStream_t stream);
  // Orders later work on `stream` after the last Launch's read of the shard, so that it may change the shard. Does not
  // block the host. Called by the thread that stages.
  absl::Status OrderAfterRead(cudaStream_t stream) const;

  struct Staged {
    PolicyVersion version;
    std::vector<uint64_t> digests;  // plan.ComputeDigests(source)
    double seconds = 0;             // time on the GPU
  };
  // Waits for the work of Launch; after OK the version can be opened. After an error nothing is staged, and the older
  // versions that are still there stay. DATA_LOSS reason NON_FINITE naming the tensor; DEADLINE_EXCEEDED reason
  // DEADLINE: then Await may be called again.
  absl::StatusOr<Staged> Await(absl::Duration deadline);

  // Launch, then Await.
  absl::StatusOr<Staged> Stage(PolicyVersion version, const ShardBases& bases, cudaStream_t stream,
                               absl::Duration deadline);

  // Gives the memory of the slots, but that of a base that is lent, back to the device and keeps their bytes in host
  // memory, which is taken at the first time and kept. True if nothing else of the slots is on the device now; false if
  // one has a reader: call again when it may have ended. Blocks for the copies. Called by the thread that stages, and
  // not between Launch and Await (FAILED_PRECONDITION reason STAGING). RESOURCE_EXHAUSTED if the host has no room: that
  // slot stays.
  absl::StatusOr<bool> LeaveDevice();
  // Bytes of device memory that the slots have now, with a base that is lent.
  int64_t device_bytes() const;
  // Bytes of the base that can be lent; 0: none.
  int64_t base_bytes() const { return base_bytes_; }
  // The memory of the base, for one process at a time. FAILED_PRECONDITION reason NOT_LENT if base_bytes() is 0, and
  // before the first version is staged; INTERNAL reason CUDA_ERROR.
  absl::StatusOr<SharedMemory> LendBase();

  uint64_t fingerprint() const override { return fingerprint_; }
  int device() const { return options_.device; }
  int64_t send_bytes() const { return send_bytes_; }
  // Bytes of device memory for the kernels' tables, besides the slots.
  int64_t scratch_bytes() const;

  // Returns a reader whose Read copies to host memory, also from a slot that has left the device.
  absl::StatusOr<std::unique_ptr<WeightReader>> Open(PolicyVersion version) override;
  // `on_superseded` is called at most once, before the slot is written to again, by the thread that stages. It must be
  // quick and must not call this arena. Blocks for a copy if the slot has left the device; RESOURCE_EXHAUSTED reason
  // OUT_OF_GPU_MEMORY if the device has no room for it.
  absl::StatusOr<std::unique_ptr<DeviceReader>> OpenOnDevice(
      PolicyVersion version, std::function<void()> on_superseded = [] {});

  int64_t superseded_readers() const;  // readers that have lost their slot so far

 private:
  class Reader;

  struct Slot {
    // Null: it has left the device, and `kept` has the bytes of `version` behind base_bytes_.
    std::shared_ptr<cuda::CudaArena> arena;
    cuda::PinnedBuffer kept;
    bool moving = false;           // from the device or to it: nobody else may use arena or kept
    PolicyVersion version;         // none: empty, or being staged
    bool has_base = false;         // of the run, wholly
    uint64_t occupancy = 0;        // number of stagings in this slot; a reader of an older one is superseded
    std::vector<Reader*> readers;  // the readers of the present occupancy
    int copies = 0;                // copies to host memory in progress, of any occupancy
  };

  // The kernels' tables on the device and the host.
  struct Tables {
    cuda::DeviceBuffer bases, findings;
    cuda::PinnedBuffer host_bases, host_findings;
  };
  // A program on the device.
  struct Work {
    cuda::DeviceBuffer vectors, elements, words;
    int64_t vector_items = 0;
    int64_t element_items = 0;
    int64_t word_items = 0;
    int64_t bytes() const { return vectors.bytes() + elements.bytes() + words.bytes(); }
  };

  struct Staging {
    PolicyVersion version;
    Slot* slot = nullptr;
    bool adapters_alone = false;
  };

  CudaSendArena(uint64_t fingerprint, int64_t send_bytes, int64_t base_bytes, std::vector<ByteRange> buckets,
                std::vector<bool> adapters, std::vector<TypedRange> numbers, const Options& options)
      : fingerprint_(fingerprint),
        send_bytes_(send_bytes),
        base_bytes_(base_bytes),
        buckets_(std::move(buckets)),
        adapters_(std::move(adapters)),
        numbers_(std::move(numbers)),
        options_(options) {}
  absl::Status Allocate(const StageProgram& program, const Manifest& manifest);
  absl::Status LoadTables(const StageProgram& program, const Manifest& manifest);
  static absl::StatusOr<Work> LoadWork(int device, const StageProgram& program);
  absl::Status RunKernels(const Work& work, char* arena, cudaStream_t stream);
  absl::StatusOr<std::unique_ptr<cuda::CudaArena>> MakeSlotMemory() const;
  // The slot for the next version, on the device.
  absl::StatusOr<Slot*> TakeSlot();
  absl::Status MoveToHost(Slot* slot);
  // Copies what the slot keeps to new memory of the device; `slot` is marked as moving.
  absl::Status MoveToDevice(Slot* slot);
  void AwaitMovedLocked(Slot* slot) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // With `on_device` the slot is brought back to the device if it has left.
  absl::StatusOr<std::unique_ptr<Reader>> Pin(PolicyVersion version, bool on_device,
                                              std::function<void()> on_superseded);
  int64_t own_bytes() const { return send_bytes_ - base_bytes_; }  // of each slot
  // Copies own_bytes().
  absl::Status CopySlot(char* to, const char* from, cudaMemcpyKind kind) const;
  // `from` is memory of the device, `to` pageable memory of the host.
  absl::Status CopyToHost(char* to, const char* from, int64_t bytes) const;
  absl::Status CheckCurrent(const Slot* slot, uint64_t occupancy) const;
  absl::Status Read(Slot* slot, uint64_t occupancy, ByteRange range, char* to);
  void Unpin(Slot* slot, uint64_t occupancy, Reader* reader);

  const uint64_t fingerprint_;
  const int64_t send_bytes_;
  const int64_t base_bytes_;               // with which all slots begin, in `base_`; 0: each has a base of its own
  std::string gpu_;                        // its UUID
  const std::vector<ByteRange> buckets_;   // by digest index
  const std::vector<bool> adapters_;       // by digest index: SyncPlan::StagedAdapters
  const std::vector<TypedRange> numbers_;  // ranges of the send arena, for errors
  const Options options_;

  // Used by the staging thread only; constant after Create, except for the contents of `tables_`.
  int blocks_ = 0;
  std::shared_ptr<const cuda::CudaArena> base_;  // null: base_bytes_ is 0
  Work all_;
  Work adapters_alone_;  // the part of `all_` that concerns adapters; empty if there are none
  Tables tables_;
  std::vector<uint64_t> first_digests_;  // of the first version that was staged
  cuda::Stream copies_;                  // for copies to host memory
  cuda::Event begun_;
  cuda::Event read_;  // the shard of the last Launch
  cuda::Event done_;
  std::optional<Staging> staging_;

  mutable Mutex mutex_;
  // The structure is constant, and so are an arena's address and bytes while the slot has readers, copies or `moving`,
  // or is being staged. Only kernels of Launch write a slot's bytes, while the slot is empty.
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  PolicyVersion newest_ ABSL_GUARDED_BY(mutex_);
  SharedMemory lent_ ABSL_GUARDED_BY(mutex_);  // null before LendBase()
  int64_t superseded_readers_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncopate::synchronizer
