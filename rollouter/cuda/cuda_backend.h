#pragma once

#include <cstdint>
#include <memory>

#include "ranks/nccl/nccl_ranks.h"
#include "rollouter/cuda/decode_views.h"
#include "rollouter/cuda/make_cuda_backend.h"
#include "rollouter/engine/engine_backend.h"
#include "synchronizer/cuda/cuda_arena_pair.h"

namespace syncopate::rollouter {

class NcclDeviceRanks;

// The backend for one GPU, in float32 or bfloat16. Weights are in CUDA virtual memory at addresses that never change.
// With two weight sets an install exchanges the memory behind the addresses; with one weight set it exchanges nothing.
// A model with adapters has adapter sets, whatever install is asked for, and lends no shadow; with kMappedBase their base
// may be the trainer's memory.
class CudaBackend final : public EngineBackend {
 public:
  // Allocates the weight sets: two with kRemap, one with kInPlace; with kBorrowed and kAuto the live one, and MakeRunner()
  // adds the other. INVALID_ARGUMENT (reason BAD_MODEL) for too large heads; RESOURCE_EXHAUSTED (reason
  // OUT_OF_GPU_MEMORY), FAILED_PRECONDITION (reason NO_GPU). `memory` says how much of the GPU may be used, see
  // KvBudget. With `ranks` (borrowed) this is one rank of
  // a replica, and `config` and `manifest` are those of its slice (rank_slice.h).
  static absl::StatusOr<std::shared_ptr<CudaBackend>> Create(const model::ModelConfig& config, const Manifest& manifest,
                                                             int device, CudaInstall install, CudaMemoryUse memory = {},
                                                             NcclGroup* ranks = nullptr);
  ~CudaBackend() override;

  at::Device device() const override { return device_; }
  DType dtype() const override { return dtype_; }
  WeightArenas& arenas() override;
  int64_t kv_block_bytes() const override;
  // With a CudaModelRunner, the number of tokens for which a prefill step takes about 50 ms on an H100, between 4096
  // and 16384; 4096 with `deterministic` or another runner.
  int64_t prefill_tokens(bool deterministic) const override;
  // Creates a CudaModelRunner if its kernels support the model, otherwise a HostModelRunner with GPU kernels for
  // attention; the log says which and why. Only the former lends: INVALID_ARGUMENT (reason BAD_CONFIG) with kBorrowed.
  absl::StatusOr<std::unique_ptr<ModelRunner>> MakeRunner(const RunnerOptions& options) override;

  // Exports the shadow's memory for transports that map it; thread-safe. FAILED_PRECONDITION (reason NOT_LENT) with
  // kInPlace or adapter sets.
  absl::StatusOr<cuda::ExportedMemory> ExportShadow() const;

 private:
  class Arenas;
  class Remapped;
  class InPlace;
  class Adapted;

  absl::StatusOr<DecodeViews> MakeViews() const;
  CudaBackend(const model::ModelConfig& config, DType dtype, at::Device device, std::unique_ptr<Arenas> arenas,
              CudaInstall install, CudaMemoryUse memory, NcclGroup* ranks);

  const model::ModelConfig config_;
  const DType dtype_;
  const at::Device device_;
  const std::unique_ptr<Arenas> arenas_;
  const CudaInstall install_;
  const CudaMemoryUse memory_;
  NcclGroup* const group_;
  const std::unique_ptr<NcclDeviceRanks> ranks_;  // null: this is the whole replica
};

}  // namespace syncopate::rollouter
