#include "model/cuda/device_code.cuh"
#include "rollouter/cuda/decode/paged_cache.h"

namespace syncopate::rollouter {
namespace {

using model::bf16;
using model::kVector;

constexpr int kMostThreads = 256;

struct Layer {
  bf16* keys = nullptr;
  bf16* values = nullptr;
};

// Scales `low` and `high`, a thread's parts of both halves of a head, by the head's norm. A head has `threads` adjacent
// threads of one warp, and all of them call this.
__device__ __forceinline__ void NormHead(float* low, float* high, const bf16* weight, int element, int half,
                                         int threads, float epsilon) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i) squares += low[i] * low[i] + high[i] * high[i];
  const unsigned lane = threadIdx.x % model::kWarp;
  const unsigned neighbours = (threads == model::kWarp ? ~0u : (1u << threads) - 1)
                              << (lane / static_cast<unsigned>(threads) * static_cast<unsigned>(threads));
  for (int offset = threads / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(neighbours, squares, offset);
  const float scale = rsqrtf(squares / static_cast<float>(2 * half) + epsilon);
  float weights[kVector];
  model::Load(weight + element, weights);
  model::ScaleAsRmsNorm(low, scale, weights);
  model::Load(weight + half + element, weights);
  model::ScaleAsRmsNorm(high, scale, weights);
#pragma unroll
  for (int i = 0; i < kVector; ++i) low[i] = model::Round(low[i]), high[i] = model::Round(high[i]);
}

// One thread block computes one row. Its work: head_dim / 16 threads for each head to rotate (a thread has eight
// elements of the lower half and the matching eight of the upper half), then head_dim / 8 for each head of values to
// copy.
__global__ void __launch_bounds__(kMostThreads)
    Append(PagedRows rows, HeadCounts heads, AppendInputs inputs, Layer layer, bf16* queries) {
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  const int row = static_cast<int>(blockIdx.x);
  const int position = rows.lengths[row] - 1;
  if (position < 0) return;
  const int dim = heads.head_dim, half = dim / 2, threads = half / kVector;
  const int rotated = (heads.heads + heads.kv_heads) * threads, copied = heads.kv_heads * (dim / kVector);
  const int stride = inputs.stride > 0 ? inputs.stride : (heads.heads + 2 * heads.kv_heads) * dim;
  const bf16* from = static_cast<const bf16*>(inputs.qkv) + static_cast<int64_t>(row) * stride;
  const int64_t block =
      rows.tables[static_cast<int64_t>(rows.slots[row]) * rows.table_stride + position / kTokensPerBlock];
  // The offset of head 0 in the block; the next head is kTokensPerBlock * dim further.
  const int64_t place = (block * heads.kv_heads * kTokensPerBlock + position % kTokensPerBlock) * dim;
  for (int work = static_cast<int>(threadIdx.x); work < rotated + copied; work += static_cast<int>(blockDim.x)) {
    if (work >= rotated) {
      const int head = (work - rotated) / (dim / kVector), element = (work - rotated) % (dim / kVector) * kVector;
      *reinterpret_cast<model::Vector*>(layer.values + place + head * kTokensPerBlock * dim + element) =
          *reinterpret_cast<const model::Vector*>(from + (heads.heads + heads.kv_heads + head) * dim + element);
      continue;
    }
    const int head = work / threads, element = work % threads * kVector;
    const bool query = head < heads.heads;
    float low[kVector], high[kVector];
    model::Load(from + head * dim + element, low);
    model::Load(from + head * dim + half + element, high);
    const bf16* norm = static_cast<const bf16*>(query ? inputs.q_norm : inputs.k_norm);
    if (norm != nullptr) NormHead(low, high, norm, element, half, threads, inputs.epsilon);
    const float4* rotations =
        reinterpret_cast<const float4*>(inputs.rotations + 2 * (static_cast<int64_t>(position) * half + element));
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      const float4 two = rotations[i / 2];  // cosine, sine, cosine, sine
      const float a = low[i], b = high[i], c = low[i + 1], d = high[i + 1];
      low[i] = a * two.x - b * two.y, high[i] = b * two.x + a * two.y;
      low[i + 1] = c * two.z - d * two.w, high[i + 1] = d * two.z + c * two.w;
    }
    bf16* to = query ? queries + (static_cast<int64_t>(row) * heads.heads + head) * dim
                     : layer.keys + place + (head - heads.heads) * kTokensPerBlock * dim;
    model::Store(to + element, low);
    model::Store(to + half + element, high);
  }
}

}  // namespace

cudaError_t RotateAndAppend(const PagedRows& rows, const HeadCounts& heads, const AppendInputs& inputs,
                            const BlockStorage& storage, int32_t layer, void* queries, cudaStream_t stream) {
  const bool fits = heads.head_dim == 32 || heads.head_dim == 64 || heads.head_dim == 128 || heads.head_dim == 256;
  if (!fits || rows.rows <= 0 || layer < 0 || layer >= storage.layers) return cudaErrorInvalidValue;
  const int64_t layer_elements = storage.layer_pieces * heads.kv_heads * kTokensPerBlock * heads.head_dim;
  const Layer place = {static_cast<bf16*>(storage.keys) + layer * layer_elements,
                       static_cast<bf16*>(storage.values) + layer * layer_elements};
  const int work = (heads.heads + heads.kv_heads) * (heads.head_dim / 16) + heads.kv_heads * (heads.head_dim / kVector);
  const int threads = (work + model::kWarp - 1) / model::kWarp * model::kWarp;
  return model::LaunchChained(Append, dim3(static_cast<unsigned>(rows.rows)),
                              dim3(static_cast<unsigned>(threads < kMostThreads ? threads : kMostThreads)), 0, stream,
                              rows, heads, inputs, place, static_cast<bf16*>(queries));
}

}  // namespace syncopate::rollouter
