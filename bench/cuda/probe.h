#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "cuda/stream.h"

// Tools with which benchmarks and tests observe a GPU.
namespace syncopate::bench {

// A decode loop without a model: each step reads a range of weights from the first byte to the last, in a CUDA graph of
// several kernels, bound by memory bandwidth as decoding is. Runs on its own thread and stream until it is destroyed.
// Thread-safe.
class DecodeLikeLoop {
 public:
  struct Options {
    int device = 0;
    int kernels_a_step = 28;  // the number of layers: each kernel reads its share
  };

  // Borrows `weights` (device memory), whose address must not change; the memory that is mapped there may change
  // between steps.
  static absl::StatusOr<std::unique_ptr<DecodeLikeLoop>> Start(const char* weights, int64_t bytes,
                                                               const Options& options);
  ~DecodeLikeLoop();

  // Runs `action` on the loop's thread between two steps, with no work of the loop under way. Returns for how long no
  // step ran because of it, or the error of `action`. DEADLINE_EXCEEDED reason DEADLINE if no step ended in time:
  // `action` has not run and never will. Usable as a BetweenSteps of CudaArenaPair. One caller at a time.
  absl::StatusOr<absl::Duration> BetweenSteps(const std::function<absl::Status()>& action, absl::Duration deadline);

  // Pause returns when no step runs; none begins before Resume. Idempotent. DEADLINE as for BetweenSteps.
  absl::Status Pause(absl::Duration deadline);
  void Resume();

  // The work of the loop so far. The rate between two readings is the bytes of the steps between them, divided by the
  // time.
  struct Reading {
    int64_t steps = 0;
    absl::Time at;          // the end of the last step
    uint64_t checksum = 0;  // the sum of the 32-bit words of the weights that the last step read
  };
  Reading Read() const;
  // Waits until `steps` steps have ended in total. DEADLINE.
  absl::Status AwaitSteps(int64_t steps, absl::Duration deadline) const;
  static double GigabytesPerSecond(const Reading& from, const Reading& to, int64_t bytes_a_step);

  absl::Status status() const;  // the first CUDA error, which ended the loop

 private:
  struct Graph;

  DecodeLikeLoop(int64_t bytes, int device, std::unique_ptr<Graph> graph);
  void Run();
  // Called between two steps: serves requests; false if the loop should end.
  bool ServeRequests(absl::Time step_ended);
  absl::Status RunStep();

  const int64_t bytes_;
  const int device_;
  const std::unique_ptr<Graph> graph_;

  mutable Mutex mutex_;
  Reading reading_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool pause_ ABSL_GUARDED_BY(mutex_) = false;
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  const std::function<absl::Status()>* action_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool acting_ ABSL_GUARDED_BY(mutex_) = false;
  absl::StatusOr<absl::Duration> acted_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  std::thread thread_;
};

// OK if a small matrix product on the device is right: the context works. Else CUDA's error, or INTERNAL reason
// WRONG_RESULT. Blocks at most `deadline`.
absl::Status CheckContext(int device, absl::Duration deadline = absl::Seconds(10));

// A copy between the memories of two GPUs of this process, performed by a copy engine of `to`.
struct PeerCopy {
  int from = 0;
  int to = 0;
};
// The ceiling of copy engines: runs all of `copies` at once, `bytes` each, `repeats` times after one warm-up. Returns
// GB/s of each copy, the median over the repeats. NO_PEER_ACCESS, OUT_OF_GPU_MEMORY. from == to measures the GPU's own
// memory, which is then both read and written.
absl::StatusOr<std::vector<double>> MeasurePeerCopies(const std::vector<PeerCopy>& copies, int64_t bytes, int repeats);

// Fills `bytes` (a multiple of 4) of device memory with random finite bf16 numbers, none of which is zero: a pure
// function of `seed`. Asynchronous on `stream`.
absl::Status FillWithRandomWeights(char* data, int64_t bytes, uint64_t seed, cudaStream_t stream);

}  // namespace syncopate::bench
