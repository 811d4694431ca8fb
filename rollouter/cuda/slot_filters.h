#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "cuda/stream.h"
#include "rollouter/cuda/decode/filtered_sample.h"
#include "rollouter/engine/step_plan.h"

namespace syncopate::rollouter {

// Device memory for sequences whose sampling changes the model's own logits: a bias and a count for each token of the
// vocabulary. A buffer is allocated when a sequence first needs one, and reused for later sequences. Not thread-safe.
class SlotFilters {
 public:
  struct Options {
    int device = 0;
    int32_t vocab = 0;
    int64_t max_context = 0;
  };
  explicit SlotFilters(const Options& options) : options_(options) {}

  // The most bytes that one sequence uses.
  static int64_t BytesOfOne(int32_t vocab) { return vocab * int64_t{sizeof(float) + sizeof(uint16_t)}; }

  // One sequence's filter, valid until Return().
  struct Lent {
    DrawFilter filter;
    int64_t bias = -1, counts = -1;  // indices in the pools; -1: none
  };
  // Allocates a filter and queues the work that fills it on `stream`, which must be the stream of all draws. Null if
  // the sequence is drawn from the policy itself. RESOURCE_EXHAUSTED (reason OUT_OF_GPU_MEMORY).
  absl::StatusOr<std::unique_ptr<Lent>> Lend(const SlotStart& start, cudaStream_t stream);
  // Call after the last draw with `lent` was launched.
  void Return(std::unique_ptr<Lent> lent);

 private:
  struct Pool {
    std::vector<cuda::DeviceBuffer> buffers;
    std::vector<int64_t> free;
  };
  absl::StatusOr<int64_t> Allocate(Pool& pool, int64_t bytes, const char* what) const;
  // Queues a copy to the scratch memory that all fills share; the stream runs fills one after the other.
  absl::Status Copy(const void* from, int64_t bytes, cudaStream_t stream);
  absl::Status GetFillBias(const SamplingParams& sampling, float* bias, cudaStream_t stream);
  absl::Status CountTokensIn(const SlotStart& start, uint16_t* counts, cudaStream_t stream);

  const Options options_;
  Pool biases_, counts_;
  cuda::DeviceBuffer scratch_;
};

}  // namespace syncopate::rollouter
