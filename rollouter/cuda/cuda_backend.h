#pragma once

#include <cstdint>
#include <memory>

#include "rollouter/cuda/make_cuda_backend.h"
#include "rollouter/engine/engine_backend.h"
#include "synchronizer/cuda/cuda_arena_pair.h"

namespace syncopate::rollouter {

// An engine on one GPU, in float32 or bfloat16. Weights lie in CUDA virtual memory at addresses that never change; an
// install exchanges the memory behind them, or there is one weight set and none is needed.
class CudaBackend final : public EngineBackend {
 public:
  // Allocates the weight sets: two with kRemap, one with kInPlace. INVALID_ARGUMENT reason BAD_MODEL for heads that are
  // too large; RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY, FAILED_PRECONDITION reason NO_GPU.
  static absl::StatusOr<std::shared_ptr<CudaBackend>> Create(const model::ModelConfig& config, const Manifest& manifest,
                                                             int device, CudaInstall install);
  ~CudaBackend() override;

  at::Device device() const override { return device_; }
  DType dtype() const override { return dtype_; }
  WeightArenas& arenas() override;
  absl::StatusOr<std::unique_ptr<ModelRunner>> MakeRunner(const RunnerOptions& options) override;

  // For transports that lend the shadow's memory; thread-safe. FAILED_PRECONDITION reason NOT_LENT with kInPlace.
  absl::StatusOr<cuda::ExportedMemory> ExportShadow() const;

 private:
  class Arenas;
  class Remapped;
  class InPlace;

  CudaBackend(const model::ModelConfig& config, DType dtype, at::Device device, std::unique_ptr<Arenas> arenas);

  const model::ModelConfig config_;
  const DType dtype_;
  const at::Device device_;
  const std::unique_ptr<Arenas> arenas_;
};

}  // namespace syncopate::rollouter
