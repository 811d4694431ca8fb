#include "synchronizer/cuda/word_digest.cuh"

namespace syncopate::synchronizer {
namespace {

constexpr int kUnroll = 4;  // vectors in flight for each thread
constexpr int kWordBytes = 8;

// The low `bytes` bytes of a word; the other bytes are zero.
__device__ __forceinline__ uint64_t LowBytes(uint64_t word, int64_t bytes) {
  return bytes >= kWordBytes ? word : word & ((uint64_t{1} << (8 * bytes)) - 1);
}

__device__ __forceinline__ uint32_t NotFinite(const FiniteTest& test, uint64_t word) {
  return test(static_cast<uint32_t>(word)) | test(static_cast<uint32_t>(word >> 32));
}

// Handles a word outside all whole vectors: there is at most one before the first vector; after the last one there may
// be one whole word and one partial word. Only those bytes of the word at `at` count that are inside the item.
__device__ __forceinline__ void CheckLooseWord(const CheckItem& item, const char* arena, int64_t at,
                                               const FiniteTest& test, uint64_t* sum, uint32_t* bad) {
  const uint64_t word = LowBytes(*reinterpret_cast<const uint64_t*>(arena + at), item.begin + item.bytes - at);
  *sum += Mix64(word + Position(item.first_word + (at - item.begin) / kWordBytes));
  *bad |= NotFinite(test, word);
}

__device__ __forceinline__ void CheckAligned(const CheckItem& item, const char* arena, Findings findings) {
  const FiniteTest test(item.numbers);
  const int64_t end = item.begin + item.bytes;
  const int64_t first = (item.begin + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
  const int32_t vectors = end < first ? 0 : static_cast<int32_t>((end - first) / kVectorBytes);
  const uint4* in = reinterpret_cast<const uint4*>(arena + first);
  uint64_t position =
      Position(item.first_word + (first - item.begin) / kWordBytes + 2 * static_cast<int64_t>(threadIdx.x));
  uint64_t sum = 0;
  uint32_t bad = 0;
  auto load = [in](int32_t v) { return __ldcs(in + v); };
  auto use = [&](int32_t, const uint4& vector) {
    sum += DigestVector(vector, position);
    bad |= test(vector);
    position += kPositionStep;
  };
  ForEachVector<kUnroll>(vectors, load, use);
  const int64_t behind = first + vectors * kVectorBytes;
  if (threadIdx.x == 0 && item.begin < first) CheckLooseWord(item, arena, item.begin, test, &sum, &bad);
  if (threadIdx.x == 1 && behind < end) CheckLooseWord(item, arena, behind, test, &sum, &bad);
  if (threadIdx.x == 2 && behind + kWordBytes < end) {
    CheckLooseWord(item, arena, behind + kWordBytes, test, &sum, &bad);
  }
  Report(sum, item.digest, bad, item.begin, findings);
}

// Digests words that each span two words of memory.
__device__ __forceinline__ void DigestShifted(const CheckItem& item, const char* arena, Findings findings) {
  const int shift = static_cast<int>(item.begin % kWordBytes) * 8;  // bits, not zero
  const uint64_t* in = reinterpret_cast<const uint64_t*>(arena + item.begin / kWordBytes * kWordBytes);
  const int32_t words = (item.bytes + kWordBytes - 1) / kWordBytes;
  uint64_t sum = 0;
#pragma unroll 4
  for (int32_t w = threadIdx.x; w < words; w += kThreads) {
    const int64_t left = item.bytes - static_cast<int64_t>(w) * kWordBytes;
    uint64_t word = in[w] >> shift;
    if (left > kWordBytes - shift / 8) word |= in[w + 1] << (64 - shift);
    sum += Mix64(LowBytes(word, left) + Position(item.first_word + w));
  }
  Report(sum, item.digest, 0, item.begin, findings);
}

// Checks any range of numbers; numbers in the same word outside the range count as zeros.
__device__ __forceinline__ void CheckNumbers(const CheckItem& item, const char* arena, Findings findings) {
  const FiniteTest test(item.numbers);
  const int64_t end = item.begin + item.bytes;
  const int64_t base = item.begin / kWordBytes * kWordBytes;
  const uint64_t* in = reinterpret_cast<const uint64_t*>(arena + base);
  const int32_t words = static_cast<int32_t>((end - base + kWordBytes - 1) / kWordBytes);
  uint32_t bad = 0;
#pragma unroll 4
  for (int32_t w = threadIdx.x; w < words; w += kThreads) {
    uint64_t word = LowBytes(in[w], end - base - static_cast<int64_t>(w) * kWordBytes);
    if (w == 0) word = word >> (8 * (item.begin - base)) << (8 * (item.begin - base));
    bad |= NotFinite(test, word);
  }
  Report(0, -1, bad, item.begin, findings);
}

__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    CheckKernel(const CheckItem* items, int64_t count, const char* arena, Findings findings) {
  for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const CheckItem item = items[i];
    switch (item.how) {
      case CheckItem::How::kAligned:
        CheckAligned(item, arena, findings);
        break;
      case CheckItem::How::kShifted:
        DigestShifted(item, arena, findings);
        break;
      case CheckItem::How::kNumbers:
        CheckNumbers(item, arena, findings);
        break;
    }
  }
}

}  // namespace

cudaError_t LoadCheckKernel() { return Load(CheckKernel); }

cudaError_t LaunchCheck(const CheckItem* items, int64_t count, const char* arena, Findings findings, int blocks,
                        cudaStream_t stream) {
  return Launch(CheckKernel, count, blocks, stream, items, count, arena, findings);
}

}  // namespace syncopate::synchronizer
