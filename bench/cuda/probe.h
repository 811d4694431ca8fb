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

// What benchmarks and tests watch a GPU with.
namespace syncopate::bench {

// A decode loop as weights see it: one step after another reads a range of weights from first byte to last, in a CUDA
// graph of several kernels, bound by memory bandwidth as decoding is. Runs on a thread and a stream of its own until it
// is destroyed. Thread-safe.
class DecodeLikeLoop {
 public:
  struct Options {
    int device = 0;
    int kernels_a_step = 28;  // as many as layers: each reads its share
  };

  // Borrows `weights` (device memory), whose address must stay; what is mapped there may change between steps.
  static absl::StatusOr<std::unique_ptr<DecodeLikeLoop>> Start(const char* weights, int64_t bytes,
                                                               const Options& options);
  ~DecodeLikeLoop();

  // Runs `action` on the loop's thread between two steps, with no work of the loop under way, and returns for how long
  // no step ran because of it, or what `action` returned. DEADLINE_EXCEEDED reason DEADLINE if the moment did not come:
  // `action` has not run and never will. A BetweenSteps for CudaArenaPair. One caller at a time.
  absl::StatusOr<absl::Duration> BetweenSteps(const std::function<absl::Status()>& action, absl::Duration deadline);

  // Pause returns when no step runs; none begins before Resume. Idempotent. DEADLINE as above.
  absl::Status Pause(absl::Duration deadline);
  void Resume();

  // What the loop has done so far. The rate between two readings is the bytes of the steps between them over the time.
  struct Reading {
    int64_t steps = 0;
    absl::Time at;          // when the last of them ended
    uint64_t checksum = 0;  // of the weights that the last step read: the sum of their 32-bit words
  };
  Reading Read() const;
  // Waits until `steps` steps have ended in all. DEADLINE.
  absl::Status AwaitSteps(int64_t steps, absl::Duration deadline) const;
  static double GigabytesPerSecond(const Reading& from, const Reading& to, int64_t bytes_a_step);

  absl::Status status() const;  // the first CUDA error; the loop has ended then

 private:
  struct Graph;

  DecodeLikeLoop(int64_t bytes, int device, std::unique_ptr<Graph> graph);
  void Run();
  // Between two steps: serves requests; false if the loop is to end.
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

// OK if a small matrix product on the device comes out right: its context works. Else what CUDA said, or INTERNAL
// reason WRONG_RESULT. Blocks at most `deadline`.
absl::Status CheckContext(int device, absl::Duration deadline = absl::Seconds(10));

// A copy between the memories of two GPUs of this process, carried out by a copy engine of `to`.
struct PeerCopy {
  int from = 0;
  int to = 0;
};
// The ceiling of what copy engines can do: all of `copies` at once, `bytes` each, `repeats` times after one to warm up;
// GB/s of each copy, medians over the repeats. NO_PEER_ACCESS, OUT_OF_GPU_MEMORY. from == to measures the GPU's own
// memory; its bytes are then both read and written.
absl::StatusOr<std::vector<double>> MeasurePeerCopies(const std::vector<PeerCopy>& copies, int64_t bytes, int repeats);

// Fills `bytes` (a multiple of 4) of device memory with random finite bf16 numbers, of which none is zero: pure
// function of `seed`. Asynchronous on `stream`.
absl::Status FillWithRandomWeights(char* data, int64_t bytes, uint64_t seed, cudaStream_t stream);

}  // namespace syncopate::bench
