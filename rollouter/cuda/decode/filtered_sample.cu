#include <climits>

#include "rollouter/cuda/decode/filtered_sample.h"
#include "rollouter/cuda/decode/sample_code.cuh"

// A block is a draw, and goes over its row several times. The tokens that are kept are those above a threshold, and some
// of those at it, the lowest indices: the threshold of top-k is the k-th highest logit, that of top-p the logit at which
// the sum of masses from above reaches its share. Both are found by a histogram over the distance to the highest logit
// and then, within one of its bins, digit by digit of the logit's bits.
namespace syncopate::rollouter {
namespace {

using model::kAllLanes;
using model::kWarp;
using Count = unsigned long long;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
constexpr int kEach = 4;  // neighbours that a thread has of a tile
constexpr int kTile = kThreads * kEach;
constexpr int kAhead = 4;  // vectors of a thread that are read before the first is looked at
constexpr int kMostVocab = 1 << 19;
constexpr int kMostTiles = kMostVocab / kTile;
constexpr int kBins = 2048;
constexpr float kBinsAUnit = 64;      // of distance: the last bin has what is 32 and more away
constexpr float kMassUnit = 0x1p40f;  // of a mass of 1, as an integer; sums of 2^19 stay below 2^60

// Grows with the number; NaN is left out before.
__device__ __forceinline__ uint32_t GetKey(float value) {
  const uint32_t bits = __float_as_uint(value == 0 ? 0.0f : value);  // -0 and 0 are equal
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

struct Row {
  const float* logits = nullptr;
  int vocab = 0;
  DrawFilter filter;
  float scale = 1;
  float highest = 0;  // of the changed logits

  __device__ __forceinline__ float Changed(int i) const { return Changed(i, logits[i]); }
  __device__ __forceinline__ float Changed(int i, float logit) const {
    if (filter.bias != nullptr) logit += filter.bias[i];
    if (filter.counts == nullptr) return logit;
    const uint16_t count = filter.counts[i];
    if (count == 0) return logit;
    if (filter.repetition_penalty != 1) {
      logit = logit > 0 ? logit / filter.repetition_penalty : logit * filter.repetition_penalty;
    }
    const int drawn = count & kMostCounted;
    return drawn == 0 ? logit
                      : logit - (filter.presence_penalty + filter.frequency_penalty * static_cast<float>(drawn));
  }
  __device__ __forceinline__ Count ComputeMass(float changed) const {
    const float mass = Mass(changed, highest, scale);
    return mass < filter.min_p ? 0 : static_cast<Count>(mass * kMassUnit);
  }
  __device__ __forceinline__ int GetBin(float changed) const {
    return static_cast<int>(fminf((highest - changed) * scale * kBinsAUnit, kBins - 1));
  }
};

// see(token, its logit) for all tokens, several at a time in flight: a row is read from memory at each pass over it.
template <typename See>
__device__ __forceinline__ void ForEach(const Row& row, const See& see) {
  const int vectors = row.vocab / kEach;
  for (int first = static_cast<int>(threadIdx.x); first < vectors; first += kThreads * kAhead) {
    float4 fours[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int v = first + u * kThreads;
      if (v < vectors) fours[u] = __ldg(reinterpret_cast<const float4*>(row.logits) + v);
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int v = first + u * kThreads;
      if (v >= vectors) break;
      see(v * kEach, fours[u].x), see(v * kEach + 1, fours[u].y);
      see(v * kEach + 2, fours[u].z), see(v * kEach + 3, fours[u].w);
    }
  }
  const int left = vectors * kEach + static_cast<int>(threadIdx.x);
  if (left < row.vocab) see(left, row.logits[left]);
}

// Logits `begin` to `begin` + 3; the row's padding makes a whole vector of the last.
__device__ __forceinline__ void LoadFour(const Row& row, int begin, float (&four)[kEach]) {
  if (begin >= row.vocab) return;
  const float4 vector = *reinterpret_cast<const float4*>(row.logits + begin);
  four[0] = vector.x, four[1] = vector.y, four[2] = vector.z, four[3] = vector.w;
}

// What is kept: keys above `key`, and the first `ties` of those equal to it.
struct Threshold {
  uint32_t key = 0;
  int ties = INT_MAX;
};

struct Shared {
  Count bins[kBins];
  Count warps[kWarps];
  Count tile_masses[kMostTiles];
  int tile_ties[kMostTiles];
  float highests[2][kWarps];
  int chosen;      // bin
  Count above;     // weight above the chosen bin
  Count tie_mass;  // of one token at the threshold
  int first, last;
};

template <typename T>
__device__ __forceinline__ T WarpSum(T value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

// Every thread gets the sum. Ends and begins with all threads in step.
__device__ __forceinline__ Count BlockSum(Count value, Shared& shared) {
  value = WarpSum(value);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) shared.warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  Count sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += shared.warps[warp];
  __syncthreads();
  return sum;
}

// The sum over all threads before this one.
__device__ __forceinline__ Count BlockBefore(Count value, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  Count sum = value;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset <<= 1) {
    const Count other = __shfl_up_sync(kAllLanes, sum, offset);
    if (lane >= offset) sum += other;
  }
  __syncthreads();
  if (lane == kWarp - 1) shared.warps[warp] = sum;
  __syncthreads();
  Count before = sum - value;
  for (int w = 0; w < warp; ++w) before += shared.warps[w];
  __syncthreads();
  return before;
}

// The first bin, from the highest or the lowest one on, with which the sum of `above` and all bins up to it reaches `target`; the last
// one with weight if none does. The first warp looks, all threads get the answer in shared.chosen and shared.above.
__device__ __forceinline__ void ChooseBin(Count above, Count target, bool from_high, Shared& shared) {
  constexpr int kOfLane = kBins / kWarp;
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const int lane = static_cast<int>(threadIdx.x);
    auto bin = [&](int i) { return from_high ? kBins - 1 - (lane * kOfLane + i) : lane * kOfLane + i; };
    Count own = 0;
    for (int i = 0; i < kOfLane; ++i) own += shared.bins[bin(i)];
    Count sum = own;
#pragma unroll
    for (int offset = 1; offset < kWarp; offset <<= 1) {
      const Count other = __shfl_up_sync(kAllLanes, sum, offset);
      if (lane >= offset) sum += other;
    }
    const unsigned reached = __ballot_sync(kAllLanes, above + sum >= target);
    const unsigned weighty = __ballot_sync(kAllLanes, own > 0);
    const int chooser = reached != 0 ? __ffs(static_cast<int>(reached)) - 1 : 31 - __clz(static_cast<int>(weighty | 1));
    if (lane == chooser) {
      Count running = above + sum - own;
      for (int i = 0; i < kOfLane; ++i) {
        const Count weight = shared.bins[bin(i)];
        if (weight > 0 || i == 0) shared.chosen = bin(i), shared.above = running;
        running += weight;
        if (running >= target && weight > 0) break;
      }
    }
  }
  __syncthreads();
}

// The threshold at which weights from above reach `target` (> 0): counted (kMass false), or masses of what `kept` keeps.
template <bool kMass>
__device__ __forceinline__ Threshold Select(const Row& row, const Threshold& kept, Count target, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  // A bin of distance, then 11, 11 and 10 bits of the key.
  int distance_bin = -1;
  uint32_t prefix = 0;
  Count above = 0;
  for (int round = 0; round < 4; ++round) {
    const int shift = round == 1 ? 21 : round == 2 ? 10 : 0;
    const int bits = round == 3 ? 10 : 11;
    for (int i = thread; i < kBins; i += kThreads) shared.bins[i] = 0;
    __syncthreads();
    ForEach(row, [&](int i, float logit) {
      const float changed = row.Changed(i, logit);
      const uint32_t key = GetKey(changed);
      if (key < kept.key) return;
      const int bin = row.GetBin(changed);
      if (round > 0 && bin != distance_bin) return;
      if (round > 1 && key >> (shift + bits) != prefix) return;
      const Count weight = kMass ? row.ComputeMass(changed) : 1;
      if (weight == 0) return;
      atomicAdd(&shared.bins[round == 0 ? bin : static_cast<int>(key >> shift & ((1u << bits) - 1))], weight);
    });
    ChooseBin(above, target, /*from_high=*/round > 0, shared);
    above = shared.above;
    if (round == 0) {
      distance_bin = shared.chosen;
    } else {
      prefix = prefix << bits | static_cast<uint32_t>(shared.chosen);
    }
  }
  // All that are left have one key and, each, one weight.
  const Count weight_here = shared.bins[shared.chosen];
  int equal = 0;
  ForEach(row, [&](int i, float logit) { equal += GetKey(row.Changed(i, logit)) == prefix ? 1 : 0; });
  const Count ties = BlockSum(static_cast<Count>(equal), shared);
  const Count each = ties > 0 ? max(weight_here / ties, Count{1}) : 1;
  const Count missing = target > above ? (target - above + each - 1) / each : 1;
  Threshold threshold = {prefix, static_cast<int>(min(missing, ties))};
  if (prefix == kept.key) threshold.ties = min(threshold.ties, kept.ties);
  return threshold;
}

// Of each tile the mass above the threshold and the number of ties; returns the mass of what is kept.
__device__ __forceinline__ Count SumTiles(const Row& row, const Threshold& kept, Shared& shared) {
  const int tiles = (row.vocab + kTile - 1) / kTile;
  Count tie_mass = 0;  // of each
  for (int i = static_cast<int>(threadIdx.x); i < tiles; i += kThreads)
    shared.tile_masses[i] = 0, shared.tile_ties[i] = 0;
  __syncthreads();
#pragma unroll 2
  for (int tile = 0; tile < tiles; ++tile) {
    Count mass = 0;
    int ties = 0;
    const int begin = tile * kTile + static_cast<int>(threadIdx.x) * kEach;
    float four[kEach] = {};
    LoadFour(row, begin, four);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (begin + j >= row.vocab) continue;
      const float changed = row.Changed(begin + j, four[j]);
      const uint32_t key = GetKey(changed);
      if (key > kept.key) mass += row.ComputeMass(changed);
      if (key == kept.key) ++ties, tie_mass = row.ComputeMass(changed);
    }
    mass = WarpSum(mass);
    ties = WarpSum(ties);
    if (threadIdx.x % kWarp == 0) {
      if (mass > 0) atomicAdd(&shared.tile_masses[tile], mass);
      if (ties > 0) atomicAdd(&shared.tile_ties[tile], ties);
    }
  }
  if (threadIdx.x == 0) shared.tie_mass = 0;
  __syncthreads();
  if (tie_mass > 0) atomicMax(&shared.tie_mass, tie_mass);
  __syncthreads();
  tie_mass = shared.tie_mass;
  Count total = 0;
  int64_t left = kept.ties;
  for (int tile = 0; tile < tiles; ++tile) {
    const int64_t taken = left < shared.tile_ties[tile] ? left : shared.tile_ties[tile];
    left -= taken;
    total += shared.tile_masses[tile] + static_cast<Count>(taken) * tie_mass;
  }
  __syncthreads();
  return total;
}

// The first kept token with which the sum of masses in the order of tokens exceeds `target`; SumTiles has been called.
__device__ __forceinline__ int Find(const Row& row, const Threshold& kept, double target, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x), tiles = (row.vocab + kTile - 1) / kTile;
  const Count tie_mass = shared.tie_mass;
  int chosen = 0;
  Count before = 0, chosen_before = 0;
  int64_t left = kept.ties, chosen_left = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    const int64_t taken = left < shared.tile_ties[tile] ? left : shared.tile_ties[tile];
    const Count mass = shared.tile_masses[tile] + static_cast<Count>(taken) * tie_mass;
    if (mass > 0) chosen = tile, chosen_before = before, chosen_left = left;
    before += mass;
    left -= taken;
    if (mass > 0 && static_cast<double>(before) > target) break;
  }
  const int begin = chosen * kTile + thread * kEach;
  float changed[kEach];
  int ties = 0;
  for (int j = 0; j < kEach; ++j) {
    changed[j] = begin + j < row.vocab ? row.Changed(begin + j) : -INFINITY;
    ties += begin + j < row.vocab && GetKey(changed[j]) == kept.key ? 1 : 0;
  }
  int64_t rank = static_cast<int64_t>(BlockBefore(static_cast<Count>(ties), shared));
  Count masses[kEach], sum = 0;
  for (int j = 0; j < kEach; ++j) {
    const uint32_t key = GetKey(changed[j]);
    const bool keeps = begin + j < row.vocab && (key > kept.key || (key == kept.key && rank++ < chosen_left));
    masses[j] = keeps ? row.ComputeMass(changed[j]) : 0;
    sum += masses[j];
  }
  if (thread == 0) shared.first = INT_MAX, shared.last = -1;
  Count running = chosen_before + BlockBefore(sum, shared);
  for (int j = 0; j < kEach; ++j) {
    if (masses[j] == 0) continue;
    running += masses[j];
    atomicMax(&shared.last, begin + j);
    if (static_cast<double>(running) > target) {
      atomicMin(&shared.first, begin + j);
      break;
    }
  }
  __syncthreads();
  return shared.first != INT_MAX ? shared.first : shared.last;
}

// The highest of the model's own logits and of the changed ones, NaN if there is one.
__device__ __forceinline__ float2 Highest(const Row& row, Shared& shared) {
  float own = -INFINITY, changed = -INFINITY;
  bool broken = false;
  ForEach(row, [&](int i, float logit) {
    const float value = row.Changed(i, logit);
    broken |= isnan(value) || isnan(logit);
    own = fmaxf(own, logit);
    changed = fmaxf(changed, value);
  });
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    own = fmaxf(own, __shfl_xor_sync(kAllLanes, own, offset));
    changed = fmaxf(changed, __shfl_xor_sync(kAllLanes, changed, offset));
  }
  const int any = __syncthreads_or(broken ? 1 : 0);
  if (threadIdx.x % kWarp == 0) {
    shared.highests[0][threadIdx.x / kWarp] = own;
    shared.highests[1][threadIdx.x / kWarp] = changed;
  }
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) {
    own = fmaxf(own, shared.highests[0][warp]);
    changed = fmaxf(changed, shared.highests[1][warp]);
  }
  return any != 0 ? make_float2(NAN, NAN) : make_float2(own, changed);
}

// The logarithm of the sum of exponentials of the model's own logits, scaled, over the highest one's. In integers, so the
// order of the sum does not tell.
__device__ __forceinline__ double LogTotal(const Row& row, float own_highest, Shared& shared) {
  Count sum = 0;
  ForEach(row, [&](int i, float logit) { sum += static_cast<Count>(Mass(logit, own_highest, row.scale) * kMassUnit); });
  return log(static_cast<double>(BlockSum(sum, shared)) / kMassUnit);
}

__device__ __forceinline__ int Greedy(const Row& row, Shared& shared) {
  if (threadIdx.x == 0) shared.first = INT_MAX;
  __syncthreads();
  ForEach(row, [&](int i, float logit) {
    if (row.Changed(i, logit) == row.highest) atomicMin(&shared.first, i);
  });
  __syncthreads();
  return shared.first;
}

__global__ void __launch_bounds__(kThreads)
    DrawFiltered(LogitsShape shape, const float* logits, const FilteredDraw* list, const SlotSampling* sampling,
                 Drawn* results, int32_t* tokens) {
  __shared__ Shared shared;
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  const FilteredDraw draw = list[blockIdx.x];
  const SlotSampling& how = sampling[draw.slot];
  Row row = {logits + static_cast<int64_t>(draw.logits_row) * shape.stride, shape.vocab, draw.filter, LogitScale(how),
             0};
  const float2 highest = Highest(row, shared);
  if (!isfinite(highest.x) || !isfinite(highest.y)) {
    if (threadIdx.x == 0) WriteDrawn(how, 0, NAN, results + draw.draw, tokens + draw.slot);
    return;
  }
  row.highest = highest.y;
  const double log_total = LogTotal(row, highest.x, shared);
  int token;
  if (!(how.inverse_temperature > 0)) {
    token = Greedy(row, shared);
  } else {
    Threshold kept;
    if (draw.filter.top_k > 0 && draw.filter.top_k < shape.vocab) {
      kept = Select<false>(row, kept, static_cast<Count>(draw.filter.top_k), shared);
    }
    Count total = SumTiles(row, kept, shared);
    if (draw.filter.top_p < 1) {
      const Count target = static_cast<Count>(static_cast<double>(draw.filter.top_p) * static_cast<double>(total));
      kept = Select<true>(row, kept, max(target, Count{1}), shared);
      total = SumTiles(row, kept, shared);
    }
    const double uniform = UniformBits(how.seed, static_cast<uint32_t>(draw.number)) * 0x1p-24;
    token = Find(row, kept, uniform * static_cast<double>(total), shared);
  }
  if (threadIdx.x != 0) return;
  const double logprob = (static_cast<double>(row.logits[token]) - highest.x) * row.scale - log_total;
  WriteDrawn(how, token, static_cast<float>(fmin(logprob, 0.0)), results + draw.draw, tokens + draw.slot);
  uint16_t* const counts = draw.filter.counts;
  if (counts != nullptr && (counts[token] & kMostCounted) < kMostCounted) ++counts[token];
}

// One block: tokens may be the same.
__global__ void __launch_bounds__(kThreads)
    CountAll(const int32_t* tokens, int32_t prompt, int32_t answer, int32_t vocab, uint16_t* counts) {
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  for (int i = static_cast<int>(threadIdx.x); i < vocab; i += kThreads) counts[i] = 0;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < prompt; i += kThreads) counts[tokens[i]] = kInPrompt;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = prompt; i < prompt + answer; ++i) {
    if ((counts[tokens[i]] & kMostCounted) < kMostCounted) ++counts[tokens[i]];
  }
}

__global__ void __launch_bounds__(kThreads)
    Fill(const BiasEntry* entries, int32_t count, float otherwise, int32_t vocab, float* bias) {
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  for (int i = static_cast<int>(threadIdx.x); i < vocab; i += kThreads) bias[i] = otherwise;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) bias[entries[i].token] = entries[i].bias;
}

}  // namespace

cudaError_t SampleFiltered(const LogitsShape& shape, const float* logits, const FilteredDraw* list, int32_t count,
                           const SlotSampling* sampling, Drawn* results, int32_t* tokens, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const bool padded = shape.stride % kEach == 0 && shape.stride >= shape.vocab;
  if (count < 0 || shape.vocab <= 0 || shape.vocab > kMostVocab || !shape.float32 || !padded) {
    return cudaErrorInvalidValue;
  }
  return model::LaunchChained(DrawFiltered, dim3(static_cast<unsigned>(count)), dim3(kThreads), 0, stream, shape,
                              logits, list, sampling, results, tokens);
}

cudaError_t FillBias(const BiasEntry* entries, int32_t count, float otherwise, int32_t vocab, float* bias,
                     cudaStream_t stream) {
  return model::LaunchChained(Fill, dim3(1), dim3(kThreads), 0, stream, entries, count, otherwise, vocab, bias);
}

cudaError_t CountTokens(const int32_t* tokens, int32_t prompt, int32_t answer, int32_t vocab, uint16_t* counts,
                        cudaStream_t stream) {
  return model::LaunchChained(CountAll, dim3(1), dim3(kThreads), 0, stream, tokens, prompt, answer, vocab, counts);
}

}  // namespace syncopate::rollouter
