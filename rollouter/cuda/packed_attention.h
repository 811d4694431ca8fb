#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "rollouter/cuda/decode/graph_decoder.h"

namespace syncopate::rollouter {

// GraphDecoder::Options::attend_packed: by cuDNN, and by libtorch's FlashAttention-2 where cuDNN refuses. Queues and
// returns, but for the first prompts of a size, of which cuDNN makes a plan (model/cuda/cudnn_attention.h); may throw
// c10::Error.
absl::Status AttendPacked(const PackedAttention& call, const HeadCounts& heads, int device, cudaStream_t stream);

// All by FlashAttention-2. Its bits of a sequence depend on no other one.
absl::Status AttendPackedByFlash(const PackedAttention& call, const HeadCounts& heads, int device, cudaStream_t stream);

}  // namespace syncopate::rollouter
