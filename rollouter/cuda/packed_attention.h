#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "cuda/stream.h"
#include "rollouter/cuda/decode/graph_decoder.h"

namespace syncopate::rollouter {

// Implements GraphDecoder::Options::attend_packed with cuDNN, or with libtorch's FlashAttention-2 if cuDNN refuses.
// Queues the work and returns, unless PreparePacked() made no plan for it; may throw c10::Error. All calls share
// `scratch` and must be on one stream; a call that needs more gets memory from libtorch. A call for which `scratch`
// suffices may be captured in a graph.
absl::Status AttendPacked(const PackedAttention& call, const HeadCounts& heads, int device,
                          const cuda::DeviceBuffer& scratch, cudaStream_t stream);

// Makes the cuDNN plans for passes of up to `sequences` prompts, each of up to `longest` tokens. Returns the bytes of
// scratch that suffice for them, 0 if cuDNN does not support the heads.
int64_t PreparePacked(const HeadCounts& heads, int device, int64_t sequences, int64_t longest);

// Uses FlashAttention-2 only. The bits of a sequence do not depend on the other sequences.
absl::Status AttendPackedByFlash(const PackedAttention& call, const HeadCounts& heads, int device, cudaStream_t stream);

}  // namespace syncopate::rollouter
