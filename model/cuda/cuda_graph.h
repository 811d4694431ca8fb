#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <utility>

#include "absl/status/statusor.h"

namespace syncopate::model {

// Work that was queued once and can be launched again and again, with the addresses that it had. Move-only.
class CudaGraph {
 public:
  // What `queue` queues on `stream` is not run but kept; it must not wait for the device nor allocate. Returns queue's
  // error, or INTERNAL reason CUDA_ERROR.
  static absl::StatusOr<CudaGraph> Capture(cudaStream_t stream, const std::function<absl::Status()>& queue);
  CudaGraph() = default;
  ~CudaGraph();
  CudaGraph(CudaGraph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  CudaGraph& operator=(CudaGraph&& other) noexcept;

  // Queues the work and returns.
  absl::Status Launch(cudaStream_t stream) const;
  // Launches it `launches` times and waits: the seconds that one took on the device.
  absl::StatusOr<double> TimeLaunch(cudaStream_t stream, int launches = 1) const;

 private:
  explicit CudaGraph(cudaGraphExec_t graph) : graph_(graph) {}
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace syncopate::model
