#pragma once

#include <cmath>

#include "rollouter/cuda/decode/attention_line.cuh"
#include "rollouter/cuda/decode/hopper.cuh"

// One warp's computation of a token's attention, by 16x8 products. For scores, tokens of the cache are the rows and
// query heads the columns; for values, elements of the head are the rows. Each number of the result depends only on its
// own column, and is computed by instructions that a compiler does not fuse (__fmul_rn and so on). So a token that
// attends alone and one that attends jointly with its neighbours have bit-identical results.
namespace syncopate::rollouter {

using model::bf16;
using model::kAllLanes;
using model::kWarp;

constexpr int kChunks = kTileTokens / kTokensPerBlock;  // chunks of a tile; each warp computes one of them
constexpr int kRowBytes = 128;                          // bytes of a row of a tile in shared memory: 64 elements
static_assert(kTokensPerBlock == 16);

// The layout of a tile in shared memory: keys [halves][64 tokens][64 elements], then values in the same form; the copy
// engine swizzles rows.
template <int kDim>
struct TileSizes {
  static constexpr int kHalves = kDim / 64;
  static constexpr int kHalfBytes = kTileTokens * kRowBytes;
  static constexpr int kTileBytes = kHalves * kHalfBytes;  // keys, or values
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kSteps = kDim / 16;  // steps of 16 elements
};

// A warp's state for one token over one chunk of each tile, in a form that can be merged (Milakov and Gimelshein, arXiv
// 1805.02867). A lane stores two query heads, 2 (lane % 4) and the next; of values, elements lane / 4 and lane / 4 + 8
// of each 16.
template <int kDim>
struct Part {
  float highest[2], total[2];
  float values[TileSizes<kDim>::kSteps][4];
  uint32_t queries[TileSizes<kDim>::kSteps][2];

  // `from` points to the first query of the group.
  __device__ __forceinline__ void Start(const bf16* from, int group) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, head = lane / 4;
    from += head * kDim + lane % 4 * 2;
#pragma unroll
    for (int step = 0; step < TileSizes<kDim>::kSteps; ++step) {
      queries[step][0] = head < group ? *reinterpret_cast<const uint32_t*>(from + step * 16) : 0;
      queries[step][1] = head < group ? *reinterpret_cast<const uint32_t*>(from + step * 16 + 8) : 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) values[step][i] = 0;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) highest[i] = -INFINITY, total[i] = 0;
  }
};

// Processes chunk `chunk` of the tile at `stage` for the queries of several tokens at a time. Query q attends to
// valid[q] of the chunk's tokens, none if that is 0 or less; at least one query has a token. The operations of the
// queries are interleaved without a branch for each; otherwise the warp would wait for every step.
template <int kDim, int kQueries>
struct ChunkOf {
  using S = TileSizes<kDim>;
  Part<kDim> (&parts)[kQueries];
  const int (&valid)[kQueries];
  const uint32_t stage;
  const int chunk;

  __device__ __forceinline__ void Add(float scale) {
    float scores[kQueries][4];
    Score(scale, scores);
    uint32_t weights[kQueries][2];
    Weigh(scores, weights);
    bool whole = true;
#pragma unroll
    for (int q = 0; q < kQueries; ++q) whole = whole && valid[q] >= kTokensPerBlock;
    if (whole) {
      AddValues<false>(weights);
    } else {
      AddValues<true>(weights);
    }
  }

 private:
  // Whether query q has a token in the chunk; a single query always has one.
  __device__ __forceinline__ bool Takes(int q) const { return kQueries == 1 || valid[q] > 0; }

  // Computes the scores of tokens lane / 4 and lane / 4 + 8 for the lane's two heads; -inf for tokens beyond valid[q].
  __device__ __forceinline__ void Score(float scale, float (&scores)[kQueries][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int token = chunk * kTokensPerBlock + lane % 16, offset = lane / 16;
    float sums[kQueries][2][4] = {};  // two independent chains of products
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      const int piece = step * 2 + offset;  // pieces of 8 elements
      uint32_t a[4];
      LoadMatrices(a, stage + piece / 8 * S::kHalfBytes + token * kRowBytes + ((piece % 8 ^ token % 8) << 4));
#pragma unroll
      for (int q = 0; q < kQueries; ++q) {
        MultiplyAdd(sums[q][step % 2], a, parts[q].queries[step][0], parts[q].queries[step][1]);
      }
    }
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float score = __fmul_rn(__fadd_rn(sums[q][0][i], sums[q][1][i]), scale);
        scores[q][i] = lane / 4 + i / 2 * 8 < valid[q] ? score : -INFINITY;
      }
    }
  }

  // Computes `weights` of the chunk's tokens, in the form of a product's columns, and updates the totals.
  __device__ __forceinline__ void Weigh(float (&scores)[kQueries][4], uint32_t (&weights)[kQueries][2]) {
    float peak[kQueries][2];
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
#pragma unroll
      for (int i = 0; i < 2; ++i) peak[q][i] = fmaxf(scores[q][i], scores[q][i + 2]);
    }
#pragma unroll
    for (int offset = 4; offset < kWarp; offset <<= 1) {
#pragma unroll
      for (int q = 0; q < kQueries; ++q) {
#pragma unroll
        for (int i = 0; i < 2; ++i) peak[q][i] = fmaxf(peak[q][i], __shfl_xor_sync(kAllLanes, peak[q][i], offset));
      }
    }
    bool raises = false;
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
#pragma unroll
      for (int i = 0; i < 2; ++i) raises = raises || peak[q][i] > parts[q].highest[i];
    }
    if (__any_sync(kAllLanes, raises)) Raise(peak);
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
      float(&s)[4] = scores[q];
#pragma unroll
      for (int i = 0; i < 4; ++i) s[i] = Takes(q) ? Exp2(__fsub_rn(s[i], parts[q].highest[i % 2])) : 0.0f;
#pragma unroll
      for (int i = 0; i < 2; ++i) parts[q].total[i] = __fadd_rn(parts[q].total[i], __fadd_rn(s[i], s[i + 2]));
      weights[q][0] = Transpose(Pack(s[0], s[1]));
      weights[q][1] = Transpose(Pack(s[2], s[3]));
    }
  }

  // Rescales sums to a higher peak. A head whose highest score stays is multiplied by 1.
  __device__ __forceinline__ void Raise(const float (&peak)[kQueries][2]) {
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
      Part<kDim>& part = parts[q];
      float kept[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float raised = fmaxf(part.highest[i], peak[q][i]);
        // The factor is 0 at the first tile: 2^-inf. Without a token it would be NaN, so it is 1.
        kept[i] = Takes(q) ? Exp2(__fsub_rn(part.highest[i], raised)) : 1.0f;
        part.total[i] = __fmul_rn(part.total[i], kept[i]);
        part.highest[i] = raised;
      }
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) part.values[step][i] = __fmul_rn(part.values[step][i], kept[i % 2]);
      }
    }
  }

  // With kMasked, tokens beyond valid[q] have weight 0, but their memory may contain anything, and 0 * NaN is not 0.
  template <bool kMasked>
  __device__ __forceinline__ void AddValues(const uint32_t (&weights)[kQueries][2]) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int token = chunk * kTokensPerBlock + lane / 16 * 8 + lane % 8, offset = lane / 8 % 2;
    const uint32_t values = stage + S::kTileBytes;
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      const int piece = step * 2 + offset;
      uint32_t a[4];
      LoadTransposed(a, values + piece / 8 * S::kHalfBytes + token * kRowBytes + ((piece % 8 ^ token % 8) << 4));
#pragma unroll
      for (int q = 0; q < kQueries; ++q) {
        if (!kMasked) {
          MultiplyAdd(parts[q].values[step], a, weights[q][0], weights[q][1]);
        } else if (Takes(q)) {
          const uint32_t low = Keep(q, 0), high = Keep(q, 8);
          const uint32_t there[4] = {a[0] & low, a[1] & low, a[2] & high, a[3] & high};
          MultiplyAdd(parts[q].values[step], there, weights[q][0], weights[q][1]);
        }
      }
    }
  }

  // A bit mask that keeps those of this lane's two tokens, from `offset` on, that exist for query q.
  __device__ __forceinline__ uint32_t Keep(int q, int offset) const {
    const int first = static_cast<int>(threadIdx.x) % 4 * 2 + offset;
    return (first < valid[q] ? 0xffffu : 0) | (first + 1 < valid[q] ? 0xffff0000u : 0);
  }
};

// Two adjacent elements of one head, merged from parts.
struct Merged {
  float highest = -INFINITY, total = 0, x = 0, y = 0;

  __device__ __forceinline__ void Add(float more_highest, float more_total, float more_x, float more_y) {
    const float peak = fmaxf(highest, more_highest);
    const float kept = Exp2(__fsub_rn(highest, peak)), weight = Exp2(__fsub_rn(more_highest, peak));
    total = __fmaf_rn(total, kept, __fmul_rn(more_total, weight));
    x = __fmaf_rn(x, kept, __fmul_rn(more_x, weight));
    y = __fmaf_rn(y, kept, __fmul_rn(more_y, weight));
    highest = peak;
  }
  __device__ __forceinline__ uint32_t Divided() const {
    const float inverse = __frcp_rn(total);
    return Pack(__fmul_rn(x, inverse), __fmul_rn(y, inverse));
  }
};

}  // namespace syncopate::rollouter
