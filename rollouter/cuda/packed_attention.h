#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "rollouter/cuda/decode/graph_decoder.h"

namespace syncopate::rollouter {

// GraphDecoder::Options::attend_packed by libtorch's FlashAttention-2. Queues and returns; may throw c10::Error.
absl::Status AttendPackedByFlash(const PackedAttention& call, const HeadCounts& heads, int device, cudaStream_t stream);

}  // namespace syncopate::rollouter
