#include <cuda_bf16.h>

#include "synchronizer/cuda/word_digest.cuh"

namespace syncopate::synchronizer {
namespace {

__device__ __forceinline__ uint32_t RoundPair(uint32_t low, uint32_t high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(__uint_as_float(low), __uint_as_float(high));
  return static_cast<uint32_t>(__bfloat16_as_ushort(pair.y)) << 16 | __bfloat16_as_ushort(pair.x);
}

__device__ __forceinline__ uint4 Round(uint4 first, uint4 second) {
  return {RoundPair(first.x, first.y), RoundPair(first.z, first.w), RoundPair(second.x, second.y),
          RoundPair(second.z, second.w)};
}

// Sources of an item's output vectors. kCast: eight fp32 become a vector of eight bf16; else sixteen bytes are copied.

// The source for rows and vectors that start on 16-byte boundaries.
template <bool kCast>
struct WideSource {
  static constexpr int kLoads = kCast ? 2 : 1;
  static constexpr int kUnroll = 4;  // vectors in flight for each thread

  const char* source;
  int64_t stride;
  uint32_t first;        // index of the first vector in its row
  uint32_t row_vectors;  // 0: no row ends here

  struct Loaded {
    uint4 parts[kLoads];
  };
  __device__ __forceinline__ Loaded Load(uint32_t v) const {
    uint32_t column = first + v;
    int64_t row = 0;
    if (row_vectors != 0) {
      const uint32_t whole = column / row_vectors;
      column -= whole * row_vectors;
      row = whole;
    }
    const uint4* from =
        reinterpret_cast<const uint4*>(source + row * stride + int64_t{column} * (kLoads * kVectorBytes));
    Loaded loaded;
#pragma unroll
    // Streaming loads: each byte is read once and must not evict training's data from the cache.
    for (int i = 0; i < kLoads; ++i) loaded.parts[i] = __ldcs(from + i);
    return loaded;
  }
  __device__ __forceinline__ static uint4 Finish(const Loaded& loaded) {
    if constexpr (kCast) {
      return Round(loaded.parts[0], loaded.parts[1]);
    } else {
      return loaded.parts[0];
    }
  }
};

// The source for any alignment and rows of any length: it loads element by element. `Element` is uint32_t (fp32) or
// uint16_t (bf16).
template <bool kCast, typename Element>
struct NarrowSource {
  static constexpr int kElements = kCast ? 8 : static_cast<int>(kVectorBytes / sizeof(Element));
  static constexpr int kUnroll = 1;

  const char* source;
  int64_t stride;
  uint32_t first;         // column
  uint32_t row_elements;  // 0: no row ends here

  struct Loaded {
    Element elements[kElements];
  };
  __device__ __forceinline__ Loaded Load(uint32_t v) const {
    Loaded loaded;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      uint32_t column = first + v * kElements + i;
      int64_t row = 0;
      if (row_elements != 0) {
        const uint32_t whole = column / row_elements;
        column -= whole * row_elements;
        row = whole;
      }
      loaded.elements[i] = *reinterpret_cast<const Element*>(source + row * stride + int64_t{column} * sizeof(Element));
    }
    return loaded;
  }
  __device__ __forceinline__ static uint4 Finish(const Loaded& loaded) {
    const Element* e = loaded.elements;
    if constexpr (kCast) {
      return {RoundPair(e[0], e[1]), RoundPair(e[2], e[3]), RoundPair(e[4], e[5]), RoundPair(e[6], e[7])};
    } else if constexpr (sizeof(Element) == 4) {
      return {e[0], e[1], e[2], e[3]};
    } else {
      auto pair = [e](int i) { return static_cast<uint32_t>(e[i + 1]) << 16 | e[i]; };
      return {pair(0), pair(2), pair(4), pair(6)};
    }
  }
};

template <typename Source>
__device__ __forceinline__ void PackVectors(const PackItem& item, const Source& source, char* arena,
                                            Findings findings) {
  const FiniteTest not_finite(item.to);
  uint4* out = reinterpret_cast<uint4*>(arena + item.send);
  uint64_t position = Position(item.first_word + 2 * static_cast<int64_t>(threadIdx.x));
  uint64_t sum = 0;
  uint32_t bad = 0;
  auto load = [&source](int32_t v) { return source.Load(static_cast<uint32_t>(v)); };
  auto use = [&](int32_t v, const typename Source::Loaded& loaded) {
    const uint4 vector = Source::Finish(loaded);
    // Packed, digested and checked while the vector is in registers, because memory bandwidth is the limit.
    __stcs(out + v, vector);
    sum += DigestVector(vector, position);
    bad |= not_finite(vector);
    position += kPositionStep;
  };
  ForEachVector<Source::kUnroll>(item.vectors, load, use);
  Report(sum, item.digest, bad, item.send, findings);
}

template <bool kCast, typename Element>
__device__ __forceinline__ void PackOne(const PackItem& item, const char* source, char* arena, Findings findings) {
  constexpr uint32_t kElements = kCast ? 8 : kVectorBytes / sizeof(Element);
  const bool rows_aligned =
      item.row_elements == 0 || (item.row_elements % kElements == 0 && item.source_stride % kVectorBytes == 0);
  const bool wide =
      rows_aligned && item.first_column % kElements == 0 && reinterpret_cast<uint64_t>(source) % kVectorBytes == 0;
  if (wide) {
    const WideSource<kCast> from{source, item.source_stride, item.first_column / kElements,
                                 item.row_elements / kElements};
    PackVectors(item, from, arena, findings);
  } else {
    const NarrowSource<kCast, Element> from{source, item.source_stride, item.first_column, item.row_elements};
    PackVectors(item, from, arena, findings);
  }
}

__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    PackKernel(const PackItem* items, int64_t count, const uint64_t* bases, char* arena, Findings findings) {
  for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const PackItem item = items[i];
    const char* source = reinterpret_cast<const char*>(bases[item.tensor]) + item.source;
    if (item.from != item.to) {
      PackOne<true, uint32_t>(item, source, arena, findings);
    } else if (item.from == NumberKind::kFloat32) {
      PackOne<false, uint32_t>(item, source, arena, findings);
    } else {
      PackOne<false, uint16_t>(item, source, arena, findings);
    }
  }
}

__device__ __forceinline__ uint32_t PackElement(const ElementItem& item, const char* from, char* to) {
  const FiniteTest not_finite(item.to);
  if (item.from == NumberKind::kBFloat16) {
    const uint16_t bits = *reinterpret_cast<const uint16_t*>(from);
    *reinterpret_cast<uint16_t*>(to) = bits;
    return not_finite(bits);
  }
  const uint32_t bits = *reinterpret_cast<const uint32_t*>(from);
  if (item.to == NumberKind::kFloat32) {
    *reinterpret_cast<uint32_t*>(to) = bits;
    return not_finite(bits);
  }
  const uint16_t rounded = static_cast<uint16_t>(RoundPair(bits, 0));
  *reinterpret_cast<uint16_t*>(to) = rounded;
  return not_finite(rounded);
}

__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    PackElementsKernel(const ElementItem* items, int64_t count, const uint64_t* bases, char* arena, Findings findings) {
  for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const ElementItem item = items[i];
    const char* source = reinterpret_cast<const char*>(bases[item.tensor]) + item.source;
    const int64_t from_width = item.from == NumberKind::kFloat32 ? 4 : 2;
    const int64_t to_width = item.to == NumberKind::kFloat32 ? 4 : 2;
    uint32_t bad = 0;
    for (int32_t k = threadIdx.x; k < item.count; k += kThreads) {
      const int64_t row = (item.first + k) / item.row_elements;
      const int64_t column = item.first + k - row * item.row_elements;
      bad |= PackElement(item, source + row * item.source_stride + column * from_width,
                         arena + item.send + row * item.send_stride + column * to_width);
    }
    const int64_t first_row = item.first / item.row_elements;
    const int64_t first_column = item.first % item.row_elements;
    Report(0, -1, bad, item.send + first_row * item.send_stride + first_column * to_width, findings);
  }
}

}  // namespace

cudaError_t LoadPackKernels() {
  const cudaError_t loaded = Load(PackKernel);
  return loaded == cudaSuccess ? Load(PackElementsKernel) : loaded;
}

cudaError_t LaunchPack(const PackItem* items, int64_t count, const uint64_t* bases, char* arena, Findings findings,
                       int blocks, cudaStream_t stream) {
  return Launch(PackKernel, count, blocks, stream, items, count, bases, arena, findings);
}

cudaError_t LaunchPackElements(const ElementItem* items, int64_t count, const uint64_t* bases, char* arena,
                               Findings findings, int blocks, cudaStream_t stream) {
  return Launch(PackElementsKernel, count, blocks, stream, items, count, bases, arena, findings);
}

int BlocksThatFill(int device) {
  int multiprocessors = 0;
  if (cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 1;
  return multiprocessors * kBlocksPerMultiprocessor;
}

}  // namespace syncopate::synchronizer
