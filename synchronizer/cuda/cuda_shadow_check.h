#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "cuda/stream.h"
#include "synchronizer/cuda/kernels.h"
#include "synchronizer/cuda/stage_program.h"
#include "synchronizer/transport/weight_target.h"

namespace syncopate::synchronizer {

// Digests a shadow on its GPU while it arrives, on its own low-priority stream, ordered after the streams that bring
// the bytes. One check at a time; a check must end before its checker is destroyed. The tables of the last check are
// kept, so that syncs of one plan have no set-up cost.
class CudaShadowChecker {
 public:
  struct Options {
    int device = 0;
    // Thread blocks that a check may use at a time; 0: all. Fewer leave more of the GPU to decode steps that run beside
    // it.
    int max_blocks = 0;
  };

  static absl::StatusOr<std::unique_ptr<CudaShadowChecker>> Create(const Options& options);

  // Checks `contents` of the arena at `shadow` on the device. RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY if the
  // tables, which take scratch_bytes(), do not fit.
  absl::StatusOr<std::unique_ptr<ShadowCheck>> Begin(const char* shadow, ShadowContents contents);

  int64_t scratch_bytes() const;  // device memory used besides the arenas

 private:
  class Check;

  CudaShadowChecker(const Options& options, int blocks, cuda::Stream stream, cuda::Event arrived, cuda::Event done)
      : options_(options),
        blocks_(blocks),
        stream_(std::move(stream)),
        arrived_(std::move(arrived)),
        done_(std::move(done)) {}
  absl::Status Load(ShadowContents contents);
  Findings findings() const;

  const Options options_;
  const int blocks_;
  const cuda::Stream stream_;
  const cuda::Event arrived_;  // recorded on the stream that brings bytes
  const cuda::Event done_;
  // State of the last check.
  ShadowContents contents_;
  CheckProgram program_;
  cuda::DeviceBuffer items_;     // program_.digests, then program_.numbers
  cuda::DeviceBuffer findings_;  // sums, then the position of the first number that is not finite
  cuda::PinnedBuffer result_;
};

}  // namespace syncopate::synchronizer
