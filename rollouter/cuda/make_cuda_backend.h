#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "cuda/gpu_memory.h"
#include "model/model_config.h"

// CudaBackend for those who cannot see libtorch's headers.
namespace syncopate {
class NcclGroup;
}

namespace syncopate::rollouter {

class EngineBackend;

enum class CudaInstall { kRemap, kInPlace };

struct CudaEngine {
  std::shared_ptr<EngineBackend> backend;
  // CudaBackend::ExportShadow, for as long as somebody holds this function.
  std::function<absl::StatusOr<cuda::ExportedMemory>()> export_shadow;
};

// Errors, `memory_share` and `ranks` as CudaBackend::Create.
absl::StatusOr<CudaEngine> MakeCudaBackend(const model::ModelConfig& config, const Manifest& manifest, int device,
                                           CudaInstall install, double memory_share, NcclGroup* ranks = nullptr);

}  // namespace syncopate::rollouter
