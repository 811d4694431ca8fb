#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "cuda/gpu_memory.h"
#include "model/model_config.h"

// Creates a CudaBackend for callers that cannot include libtorch's headers.
namespace syncopate {
class NcclGroup;
}

namespace syncopate::rollouter {

class EngineBackend;

enum class CudaInstall {
  kRemap,    // two weight sets
  kInPlace,  // one
  // Two, of which the one that does not serve is memory of the keys and values except during a weight sync. kAuto: this
  // or kRemap, see ChooseKvParts.
  kBorrowed,
  kAuto,
  // Adapter sets whose base may be memory that a trainer lends, and has memory of its own only once it is received.
  kMappedBase,
};

// How much of a GPU's memory an engine may use.
struct CudaMemoryUse {
  double share = 0.9;  // of the GPU's memory that may be in use in the end, by all processes
  // The part of it that is left for what is there at times and may not be there now: memory of other processes, and a
  // base that an engine with kMappedBase may have to receive.
  int64_t others_bytes = 0;
};

struct CudaEngine {
  std::shared_ptr<EngineBackend> backend;
  // Calls CudaBackend::ExportShadow; a copy of this function keeps the backend alive.
  std::function<absl::StatusOr<cuda::ExportedMemory>()> export_shadow;
};

// Errors, `memory` and `ranks` as in CudaBackend::Create.
absl::StatusOr<CudaEngine> MakeCudaBackend(const model::ModelConfig& config, const Manifest& manifest, int device,
                                           CudaInstall install, CudaMemoryUse memory, NcclGroup* ranks = nullptr);

}  // namespace syncopate::rollouter
