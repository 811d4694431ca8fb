#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "cuda/stream.h"
#include "rollouter/cuda/decode/filtered_sample.h"
#include "rollouter/engine/step_plan.h"

namespace syncopate::rollouter {

// The device's memory for sequences whose sampling looks at more than the model's own logits: a bias and a count of each
// token of the vocabulary, taken when a sequence first needs one and kept for the next. Not thread-safe.
class SlotFilters {
 public:
  struct Options {
    int device = 0;
    int32_t vocab = 0;
    int64_t max_context = 0;
  };
  explicit SlotFilters(const Options& options) : options_(options) {}

  // What one sequence can take, bytes.
  static int64_t BytesOfOne(int32_t vocab) { return vocab * int64_t{sizeof(float) + sizeof(uint16_t)}; }

  // One sequence's filter, for as long as draws are launched with it.
  struct Lent {
    DrawFilter filter;
    int64_t bias = -1, counts = -1;  // places; -1: none
  };
  // Queues what fills the memory on `stream`, on which all draws are. Null if the sequence is drawn from the policy itself.
  // RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY.
  absl::StatusOr<std::unique_ptr<Lent>> Lend(const SlotStart& start, cudaStream_t stream);
  // Its last draw has been launched.
  void Return(std::unique_ptr<Lent> lent);

 private:
  struct Pool {
    std::vector<cuda::DeviceBuffer> buffers;
    std::vector<int64_t> free;
  };
  absl::StatusOr<int64_t> Allocate(Pool& pool, int64_t bytes, const char* what) const;
  // Copies to the scratch memory that all fills share, one after the other on the stream.
  absl::Status Copy(const void* from, int64_t bytes, cudaStream_t stream);
  absl::Status GetFillBias(const SamplingParams& sampling, float* bias, cudaStream_t stream);
  absl::Status CountTokensIn(const SlotStart& start, uint16_t* counts, cudaStream_t stream);

  const Options options_;
  Pool biases_, counts_;
  cuda::DeviceBuffer scratch_;
};

}  // namespace syncopate::rollouter
