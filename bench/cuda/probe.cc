#include "bench/cuda/probe.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status.h"
#include "bench/cuda/probe_kernels.h"
#include "cuda/cuda_arena.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "synchronizer/cuda/kernels.h"

namespace syncopate::bench {
namespace {

constexpr absl::Duration kStepDeadline = absl::Seconds(30);

absl::Status DeadlinePassed(const std::string& what) {
  return Error(absl::StatusCode::kDeadlineExceeded, "DEADLINE", what);
}

// Ends a capture that an error interrupted, so that the stream can be used again.
class Capture {
 public:
  explicit Capture(cudaStream_t stream) : stream_(stream) {}
  ~Capture() {
    cudaGraph_t graph = nullptr;
    if (open_ && cudaStreamEndCapture(stream_, &graph) == cudaSuccess) cudaGraphDestroy(graph);
  }
  absl::Status Begin() {
    SYNCOPATE_RETURN_IF_ERROR(
        cuda::CudaStatus(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing a decode step"));
    open_ = true;
    return absl::OkStatus();
  }
  absl::StatusOr<cudaGraphExec_t> End() {
    open_ = false;
    cudaGraph_t graph = nullptr;
    SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(cudaStreamEndCapture(stream_, &graph), "capturing a decode step"));
    cudaGraphExec_t executable = nullptr;
    cudaError_t made = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(made, "making a graph of a decode step"));
    return executable;
  }

 private:
  cudaStream_t stream_;
  bool open_ = false;
};

}  // namespace

// A decode step without a model: it reads all weights once, like the decoding of one token, and is bound by memory
// bandwidth. So its rate shows the bandwidth that a sync takes.
struct DecodeLikeLoop::Graph {
  cuda::Stream stream;
  cuda::Event done;
  cuda::DeviceBuffer sum;
  cuda::PinnedBuffer host_sum;
  cudaGraphExec_t executable = nullptr;

  ~Graph() {
    if (executable != nullptr) cudaGraphExecDestroy(executable);
  }

  static absl::StatusOr<std::unique_ptr<Graph>> Make(const char* weights, int64_t bytes, const Options& options) {
    auto graph = std::make_unique<Graph>();
    SYNCOPATE_ASSIGN_OR_RETURN(graph->stream, cuda::Stream::Create(options.device));
    SYNCOPATE_ASSIGN_OR_RETURN(graph->done, cuda::Event::Create(options.device));
    SYNCOPATE_ASSIGN_OR_RETURN(graph->sum, cuda::DeviceBuffer::Create(options.device, 8, "the decode loop's sum"));
    SYNCOPATE_ASSIGN_OR_RETURN(graph->host_sum, cuda::PinnedBuffer::Create(8));
    Capture capture(graph->stream.get());
    SYNCOPATE_RETURN_IF_ERROR(capture.Begin());
    SYNCOPATE_RETURN_IF_ERROR(graph->Step(weights, bytes, options));
    SYNCOPATE_ASSIGN_OR_RETURN(graph->executable, capture.End());
    return graph;
  }

  absl::Status Step(const char* weights, int64_t bytes, const Options& options) const {
    const std::string what = "a decode step";
    const int blocks = synchronizer::BlocksThatFill(options.device);
    // The sum keeps a compiler from removing the reads, and distinguishes two versions.
    SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(cudaMemsetAsync(sum.data(), 0, 8, stream.get()), what));
    const int64_t vectors = bytes / synchronizer::kVectorBytes;
    // In as many kernels as a model has layers, because a sync may also disturb launches.
    for (int64_t k = 0; k < options.kernels_a_step; ++k) {
      const int64_t begin = vectors * k / options.kernels_a_step * synchronizer::kVectorBytes;
      const int64_t end = vectors * (k + 1) / options.kernels_a_step * synchronizer::kVectorBytes;
      SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(
          LaunchReadWeights(weights + begin, end - begin, sum.as<uint64_t>(), blocks, stream.get()), what));
    }
    return cuda::CudaStatus(cudaMemcpyAsync(host_sum.data(), sum.data(), 8, cudaMemcpyDeviceToHost, stream.get()),
                            what);
  }
};

DecodeLikeLoop::DecodeLikeLoop(int64_t bytes, int device, std::unique_ptr<Graph> graph)
    : bytes_(bytes), device_(device), graph_(std::move(graph)) {}

absl::StatusOr<std::unique_ptr<DecodeLikeLoop>> DecodeLikeLoop::Start(const char* weights, int64_t bytes,
                                                                      const Options& options) {
  SYNCOPATE_RETURN_IF_ERROR(cuda::CheckGpu(options.device));
  cuda::DeviceScope scope(options.device);
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<Graph> graph, Graph::Make(weights, bytes, options));
  std::unique_ptr<DecodeLikeLoop> loop(new DecodeLikeLoop(bytes, options.device, std::move(graph)));
  loop->thread_ = std::thread([raw = loop.get()] { raw->Run(); });
  return loop;
}

DecodeLikeLoop::~DecodeLikeLoop() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
}

void DecodeLikeLoop::Run() {
  cuda::DeviceScope scope(device_);
  absl::Status status;
  while (status.ok() && ServeRequests(Clock::Real()->Now())) status = RunStep();
  MutexLock lock(&mutex_);
  status_ = status;
  ended_ = true;
}

absl::Status DecodeLikeLoop::RunStep() {
  SYNCOPATE_RETURN_IF_ERROR(
      cuda::CudaStatus(cudaGraphLaunch(graph_->executable, graph_->stream.get()), "a decode step"));
  SYNCOPATE_RETURN_IF_ERROR(graph_->done.Record(graph_->stream.get()));
  SYNCOPATE_RETURN_IF_ERROR(graph_->done.Wait(kStepDeadline, "a decode step", kStepDeadline));
  MutexLock lock(&mutex_);
  ++reading_.steps;
  reading_.at = Clock::Real()->Now();
  reading_.checksum = *graph_->host_sum.as<uint64_t>();
  return absl::OkStatus();
}

bool DecodeLikeLoop::ServeRequests(absl::Time step_ended) {
  while (true) {
    const std::function<absl::Status()>* action = nullptr;
    {
      MutexLock lock(&mutex_);
      paused_ = pause_;
      auto something_to_do = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stop_ || !pause_ || action_ != nullptr;
      };
      mutex_.Await(Condition(&something_to_do));
      paused_ = pause_;
      if (stop_) return false;
      if (action_ == nullptr) return true;
      // From here on the caller waits as long as the action takes, because it owns the variables that the action
      // captured.
      action = std::exchange(action_, nullptr);
      acting_ = true;
    }
    absl::Status done = (*action)();
    const absl::Duration pause = Clock::Real()->Now() - step_ended;
    MutexLock lock(&mutex_);
    acting_ = false;
    acted_ = done.ok() ? absl::StatusOr<absl::Duration>(pause) : absl::StatusOr<absl::Duration>(done);
  }
}

absl::StatusOr<absl::Duration> DecodeLikeLoop::BetweenSteps(const std::function<absl::Status()>& action,
                                                            absl::Duration deadline) {
  MutexLock lock(&mutex_);
  action_ = &action;
  auto taken = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return action_ == nullptr || ended_; };
  mutex_.AwaitWithTimeout(Condition(&taken), deadline);
  // The loop has not taken it, so it can be withdrawn: it will not be called.
  if (action_ != nullptr) {
    action_ = nullptr;
    if (!status_.ok()) return status_;
    return DeadlinePassed("the decode step did not end in time");
  }
  auto acted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !acting_; };
  mutex_.Await(Condition(&acted));  // it has begun: waits as long as the action takes
  return acted_;
}

absl::Status DecodeLikeLoop::Pause(absl::Duration deadline) {
  MutexLock lock(&mutex_);
  pause_ = true;
  auto paused = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return paused_ || ended_; };
  if (mutex_.AwaitWithTimeout(Condition(&paused), deadline)) return status_;
  pause_ = false;
  return DeadlinePassed("the decode step did not end in time");
}

void DecodeLikeLoop::Resume() {
  MutexLock lock(&mutex_);
  pause_ = false;
}

DecodeLikeLoop::Reading DecodeLikeLoop::Read() const {
  MutexLock lock(&mutex_);
  return reading_;
}

absl::Status DecodeLikeLoop::AwaitSteps(int64_t steps, absl::Duration deadline) const {
  MutexLock lock(&mutex_);
  auto enough = [this, steps]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return reading_.steps >= steps || ended_; };
  if (!mutex_.AwaitWithTimeout(Condition(&enough), deadline)) return DeadlinePassed("too few decode steps");
  return status_;
}

double DecodeLikeLoop::GigabytesPerSecond(const Reading& from, const Reading& to, int64_t bytes_a_step) {
  const double seconds = absl::ToDoubleSeconds(to.at - from.at);
  if (seconds <= 0) return 0;
  return static_cast<double>(to.steps - from.steps) * static_cast<double>(bytes_a_step) / seconds / 1e9;
}

absl::Status DecodeLikeLoop::status() const {
  MutexLock lock(&mutex_);
  return status_;
}

// For use after the death of a peer whose memory this process has mapped: a GPU's context may be unusable, or compute
// wrong numbers, although no call has failed.
absl::Status CheckContext(int device, absl::Duration deadline) {
  constexpr int kSize = 128;
  constexpr int64_t kNumbers = kSize * kSize;
  constexpr int64_t kBytes = kNumbers * sizeof(float);
  const std::string what = "proving that the GPU's context works";
  cuda::DeviceScope scope(device);
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::Create(device));
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::Event done, cuda::Event::Create(device));
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::DeviceBuffer matrices, cuda::DeviceBuffer::Create(device, 3 * kBytes, what));
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::PinnedBuffer host, cuda::PinnedBuffer::Create(3 * kBytes));
  // Small integers, so that every product is exact.
  float* a = host.as<float>();
  for (int64_t i = 0; i < 2 * kNumbers; ++i) a[i] = static_cast<float>(i * 7 % 11 - 5);
  const float* b = a + kNumbers;
  const float* c = b + kNumbers;
  float* on_device = matrices.as<float>();
  SYNCOPATE_RETURN_IF_ERROR(
      cuda::CudaStatus(cudaMemcpyAsync(on_device, a, 2 * kBytes, cudaMemcpyHostToDevice, stream.get()), what));
  SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(
      LaunchMatmul(on_device, on_device + kNumbers, on_device + 2 * kNumbers, kSize, stream.get()), what));
  SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaMemcpyAsync(a + 2 * kNumbers, on_device + 2 * kNumbers, kBytes, cudaMemcpyDeviceToHost, stream.get()), what));
  SYNCOPATE_RETURN_IF_ERROR(done.Record(stream.get()));
  SYNCOPATE_RETURN_IF_ERROR(done.Wait(deadline, what));
  for (int row = 0; row < kSize; ++row) {
    for (int column = 0; column < kSize; ++column) {
      float expected = 0;
      for (int k = 0; k < kSize; ++k) expected += a[row * kSize + k] * b[k * kSize + column];
      if (c[row * kSize + column] == expected) continue;
      return Error(
          absl::StatusCode::kInternal, "WRONG_RESULT",
          absl::StrFormat("GPU %d multiplies wrongly: %g instead of %g", device, c[row * kSize + column], expected));
    }
  }
  return absl::OkStatus();
}

absl::Status FillWithRandomWeights(char* data, int64_t bytes, uint64_t seed, cudaStream_t stream) {
  constexpr int kBlocks = 1024;
  return cuda::CudaStatus(LaunchFillRandom(data, bytes, seed, kBlocks, stream), "making random weights");
}

}  // namespace syncopate::bench
