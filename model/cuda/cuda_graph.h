#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <utility>

#include "absl/status/statusor.h"

namespace syncopate::model {

// A CUDA graph: work that is captured once and can be launched repeatedly, always with the same addresses. Move-only.
class CudaGraph {
 public:
  // Captures the work that `queue` queues on `stream`, without running it. `queue` must not wait for the device or
  // allocate. Returns queue's error, or INTERNAL reason CUDA_ERROR.
  static absl::StatusOr<CudaGraph> Capture(cudaStream_t stream, const std::function<absl::Status()>& queue);
  CudaGraph() = default;
  ~CudaGraph();
  CudaGraph(CudaGraph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  CudaGraph& operator=(CudaGraph&& other) noexcept;

  // Queues the work and returns.
  absl::Status Launch(cudaStream_t stream) const;
  // Launches the work `launches` times and blocks until it is done; returns the device's seconds for one launch.
  absl::StatusOr<double> TimeLaunch(cudaStream_t stream, int launches = 1) const;

 private:
  explicit CudaGraph(cudaGraphExec_t graph) : graph_(graph) {}
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace syncopate::model
