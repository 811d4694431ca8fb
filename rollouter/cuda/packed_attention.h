#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "cuda/stream.h"
#include "rollouter/cuda/decode/graph_decoder.h"

namespace syncopate::rollouter {

// GraphDecoder::Options::attend_packed: by cuDNN, and by libtorch's FlashAttention-2 where cuDNN refuses. Queues and
// returns, but for what PreparePacked() has made no plan for; may throw c10::Error. `scratch` is memory that such calls
// share, all on one stream; what is more than it, libtorch lends. A call that it is enough for may be captured.
absl::Status AttendPacked(const PackedAttention& call, const HeadCounts& heads, int device,
                          const cuda::DeviceBuffer& scratch, cudaStream_t stream);

// Makes the plans for passes of up to `sequences` prompts, of up to `longest` tokens. Returns the bytes of scratch that is
// enough for them, 0 if cuDNN does not attend.
int64_t PreparePacked(const HeadCounts& heads, int device, int64_t sequences, int64_t longest);

// All by FlashAttention-2. Its bits of a sequence depend on no other one.
absl::Status AttendPackedByFlash(const PackedAttention& call, const HeadCounts& heads, int device, cudaStream_t stream);

}  // namespace syncopate::rollouter
