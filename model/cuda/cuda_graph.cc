#include "model/cuda/cuda_graph.h"

#include "absl/time/time.h"
#include "base/status.h"
#include "cuda/cuda_status.h"
#include "cuda/stream.h"

namespace syncopate::model {

using cuda::CudaStatus;
using cuda::Event;

absl::StatusOr<CudaGraph> CudaGraph::Capture(cudaStream_t stream, const std::function<absl::Status()>& queue) {
  SYNCOPATE_RETURN_IF_ERROR(
      CudaStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capturing a graph"));
  const absl::Status queued = queue();
  cudaGraph_t captured = nullptr;
  const absl::Status ended = CudaStatus(cudaStreamEndCapture(stream, &captured), "capturing a graph");
  cudaGraphExec_t graph = nullptr;
  absl::Status made = queued.ok() ? ended : queued;  // an error of `queue` is the reason if the capture broke
  if (made.ok()) made = CudaStatus(cudaGraphInstantiate(&graph, captured, 0), "instantiating a graph");
  if (captured != nullptr) cudaGraphDestroy(captured);
  if (!made.ok()) return made;
  return CudaGraph(graph);
}

CudaGraph::~CudaGraph() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
}

CudaGraph& CudaGraph::operator=(CudaGraph&& other) noexcept {
  std::swap(graph_, other.graph_);
  return *this;
}

absl::Status CudaGraph::Launch(cudaStream_t stream) const {
  return CudaStatus(cudaGraphLaunch(graph_, stream), "launching a graph");
}

absl::StatusOr<double> CudaGraph::TimeLaunch(cudaStream_t stream, int launches) const {
  int device = 0;
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "timing a graph"));
  SYNCOPATE_ASSIGN_OR_RETURN(const Event begin, Event::Create(device, Event::Timing::kOn));
  SYNCOPATE_ASSIGN_OR_RETURN(const Event end, Event::Create(device, Event::Timing::kOn));
  SYNCOPATE_RETURN_IF_ERROR(begin.Record(stream));
  for (int i = 0; i < launches; ++i) SYNCOPATE_RETURN_IF_ERROR(Launch(stream));
  SYNCOPATE_RETURN_IF_ERROR(end.Record(stream));
  SYNCOPATE_RETURN_IF_ERROR(end.Wait(absl::Minutes(1), "a graph that is timed"));
  SYNCOPATE_ASSIGN_OR_RETURN(const double seconds, Event::SecondsBetween(begin, end));
  return seconds / launches;
}

}  // namespace syncopate::model
