#include <climits>
#include <cmath>

#include "rollouter/cuda/decode/sample_code.cuh"

// Two kernels. The first cuts each row into chunks and gives each chunk's highest logit and its sum of exponentials.
// The second finds the chunk that the uniform number falls into and looks for the token in that one alone. Sums over
// threads and chunks are in float64: with 150,000 tokens of like probability, float32 would often move the draw to a
// neighbour of the token that the CPU draws.
namespace syncopate::rollouter {
namespace {

using model::bf16;
using model::kAllLanes;
using model::kVector;
using model::kWarp;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kVectors = 4;  // of a thread
constexpr int kMostChunk = kThreads * kVectors * kVector;
constexpr int kMostChunks = 64;

struct ChunkSum {
  double total = 0;  // of exp((logit - highest) * inverse temperature)
  float highest = -INFINITY;
};

struct Chunking {
  int chunk = 0;  // elements, a multiple of kVector
  int count = 0;
};
Chunking GetChunks(int vocab) {
  const int least = (vocab + kMostChunk - 1) / kMostChunk;
  const int chunk = ((vocab + least - 1) / least + kVector - 1) / kVector * kVector;
  return {chunk, (vocab + chunk - 1) / chunk};
}

__device__ __forceinline__ float Uniform(uint64_t key, uint32_t counter) {
  return static_cast<float>(UniformBits(key, counter)) * 0x1p-24f;
}

__device__ __forceinline__ int64_t MakeRow(const Draws& draws, int draw) {
  return draws.logits_rows != nullptr ? draws.logits_rows[draw] : draw;
}

// Vector v of the chunk, -inf beyond its `count` elements.
template <typename T>
__device__ __forceinline__ void LoadVector(const T* chunk, int v, int count, float* values) {
  const int first = v * kVector;
  if (first >= count) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = -INFINITY;
    return;
  }
  model::Load(chunk + first, values);  // the row's padding makes whole vectors of all
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if (first + i >= count) values[i] = -INFINITY;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) SumChunks(LogitsShape shape, int chunk, const T* logits, Draws draws,
                                                      const SlotSampling* sampling, ChunkSum* sums) {
  __shared__ float highests[kWarps];
  __shared__ double totals[kWarps];
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  const int thread = static_cast<int>(threadIdx.x);
  const int begin = static_cast<int>(blockIdx.x) * chunk, count = min(chunk, shape.vocab - begin);
  const T* from = logits + MakeRow(draws, static_cast<int>(blockIdx.y)) * shape.stride + begin;
  const float scale = LogitScale(sampling[draws.slots[blockIdx.y]]);
  float values[kVectors][kVector], highest = -INFINITY;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) LoadVector(from, j * kThreads + thread, count, values[j]);
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) highest = fmaxf(highest, values[j][i]);
  }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, offset));
  }
  if (thread % kWarp == 0) highests[thread / kWarp] = highest;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) highest = fmaxf(highest, highests[warp]);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += Mass(values[j][i], highest, scale);
  }
  double total = sum;
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) total += __shfl_xor_sync(kAllLanes, total, offset);
  if (thread % kWarp == 0) totals[thread / kWarp] = total;
  __syncthreads();
  if (thread != 0) return;
  for (int warp = 1; warp < kWarps; ++warp) total += totals[warp];
  sums[static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = {total, highest};
}

// What the second kernel looks for: in chunk `chunk` the first element whose running sum exceeds `target`, or, greedy,
// the first that equals `highest`.
struct Search {
  int chunk = 0;
  double target = 0;  // of sums of exp((logit - highest) * scale)
  float highest = 0;  // of the chunk
  float row_highest = 0;
  double row_total = 0;  // relative to row_highest
};

// Every thread gets the same answer. `sums` [chunks] and `weights` [chunks] are shared memory; NaN makes NaN of
// row_total.
__device__ __forceinline__ Search FindChunk(const ChunkSum* sums, const double* weights, int chunks, float row_highest,
                                            float uniform, bool greedy) {
  Search search;
  search.row_highest = row_highest;
  for (int c = 0; c < chunks; ++c) search.row_total += sums[c].total * weights[c];
  const double target = static_cast<double>(uniform) * search.row_total;
  double running = 0;
  for (int c = 0; c < chunks; ++c) {
    const double mass = sums[c].total * weights[c];
    const bool found = greedy ? sums[c].highest == row_highest : running + mass > target;
    // The last chunk with mass, if rounding carries the sum short of the target.
    if (found || mass > 0) {
      search.chunk = c;
      search.highest = sums[c].highest;
      search.target = (target - running) / weights[c];
    }
    if (found) break;
    running += mass;
  }
  return search;
}

// The log-probability of a logit, as the CPU computes it.
__device__ __forceinline__ float LogProbability(float logit, const Search& search, float scale) {
  const double logprob = (static_cast<double>(logit) - search.row_highest) * scale - log(search.row_total);
  return static_cast<float>(fmin(logprob, 0.0));
}

// inclusive[j]: the sum of the masses of all vectors up to this thread's vector j * kThreads + thread. All threads
// call.
__device__ __forceinline__ void SumBefore(const float (&masses)[kVectors], double (&inclusive)[kVectors],
                                          double (&warps)[kVectors][kWarps]) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    double sum = masses[j];
#pragma unroll
    for (int offset = 1; offset < kWarp; offset <<= 1) {
      const double other = __shfl_up_sync(kAllLanes, sum, offset);
      if (lane >= offset) sum += other;
    }
    inclusive[j] = sum;
    if (lane == kWarp - 1) warps[j][thread / kWarp] = sum;
  }
  __syncthreads();
  double running = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      if (warp == thread / kWarp) inclusive[j] += running;
      running += warps[j][warp];
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    Draw(LogitsShape shape, int chunk, int chunks, const T* logits, Draws draws, const SlotSampling* sampling,
         const ChunkSum* sums, Drawn* results, int32_t* tokens) {
  __shared__ ChunkSum row_sums[kMostChunks];
  __shared__ double weights[kMostChunks], warps[kVectors][kWarps];
  __shared__ int first, last;  // vectors: the one that is looked for, and the last one with mass
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  const int thread = static_cast<int>(threadIdx.x), draw = static_cast<int>(blockIdx.x);
  const int slot = draws.slots[draw];
  const SlotSampling& how = sampling[slot];
  const float scale = LogitScale(how);
  const bool greedy = !(how.inverse_temperature > 0);
  if (thread < chunks) row_sums[thread] = sums[static_cast<int64_t>(draw) * chunks + thread];
  if (thread == 0) first = INT_MAX, last = -1;
  __syncthreads();
  float row_highest = -INFINITY;
  for (int c = 0; c < chunks; ++c) row_highest = fmaxf(row_highest, row_sums[c].highest);
  if (thread < chunks) {
    weights[thread] = row_sums[thread].total > 0
                          ? exp((static_cast<double>(row_sums[thread].highest) - row_highest) * scale)
                          : row_sums[thread].total;  // nothing but -inf; or NaN stays NaN
  }
  __syncthreads();
  const Search search = FindChunk(row_sums, weights, chunks, row_highest,
                                  Uniform(how.seed, static_cast<uint32_t>(draws.numbers[draw])), greedy);
  if (!(search.row_total > 0 && search.row_total < INFINITY)) {
    if (thread == 0) WriteDrawn(how, 0, NAN, results + draw, tokens + slot);
    return;
  }
  const int begin = search.chunk * chunk, count = min(chunk, shape.vocab - begin);
  const T* from = logits + MakeRow(draws, draw) * shape.stride + begin;
  float masses[kVectors];
  double inclusive[kVectors] = {};
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    float values[kVector];
    LoadVector(from, j * kThreads + thread, count, values);
    masses[j] = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      masses[j] += greedy ? (values[i] == search.highest ? 1.0f : 0.0f) : Mass(values[i], search.highest, scale);
    }
  }
  SumBefore(masses, inclusive, warps);
  const double target = greedy ? 0 : search.target;
  int own_first = INT_MAX, own_last = -1;
#pragma unroll
  for (int j = kVectors - 1; j >= 0; --j) {
    if (masses[j] > 0) own_last = max(own_last, j * kThreads + thread);
    if (masses[j] > 0 && inclusive[j] > target) own_first = j * kThreads + thread;
  }
  own_first = __reduce_min_sync(kAllLanes, own_first);
  own_last = __reduce_max_sync(kAllLanes, own_last);
  if (thread % kWarp == 0) {
    atomicMin(&first, own_first);
    atomicMax(&last, own_last);
  }
  __syncthreads();
  const int chosen = first == INT_MAX ? last : first;
  if (chosen % kThreads != thread) return;
  float values[kVector];
  LoadVector(from, chosen, count, values);
  double running = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    if (chosen / kThreads == j) running = inclusive[j] - masses[j];
  }
  int element = -1;
  float logit = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float mass = greedy ? (values[i] == search.highest ? 1.0f : 0.0f) : Mass(values[i], search.highest, scale);
    if (mass > 0 && (element < 0 || running <= target)) element = i, logit = values[i];
    running += mass;
  }
  WriteDrawn(how, begin + chosen * kVector + element, LogProbability(logit, search, scale), results + draw,
             tokens + slot);
}

template <typename T>
cudaError_t Launch(const LogitsShape& shape, const Chunking& chunks, const T* logits, const Draws& draws,
                   const SlotSampling* sampling, ChunkSum* sums, Drawn* results, int32_t* tokens, cudaStream_t stream) {
  const unsigned rows = static_cast<unsigned>(draws.count);
  const cudaError_t error =
      model::LaunchChained(SumChunks<T>, dim3(static_cast<unsigned>(chunks.count), rows), dim3(kThreads), 0, stream,
                           shape, chunks.chunk, logits, draws, sampling, sums);
  if (error != cudaSuccess) return error;
  return model::LaunchChained(Draw<T>, dim3(rows), dim3(kThreads), 0, stream, shape, chunks.chunk, chunks.count, logits,
                              draws, sampling, sums, results, tokens);
}

}  // namespace

int64_t SampleScratchBytes(int32_t draws, int32_t vocab) {
  return static_cast<int64_t>(draws) * GetChunks(vocab).count * int64_t{sizeof(ChunkSum)};
}

cudaError_t Sample(const LogitsShape& shape, const void* logits, const Draws& draws, const SlotSampling* sampling,
                   void* scratch, Drawn* results, int32_t* tokens, cudaStream_t stream) {
  if (draws.count <= 0 || shape.vocab <= 0 || shape.stride % kVector != 0 || shape.stride < shape.vocab) {
    return cudaErrorInvalidValue;
  }
  const Chunking chunks = GetChunks(shape.vocab);
  if (chunks.count > kMostChunks) return cudaErrorInvalidValue;
  ChunkSum* sums = static_cast<ChunkSum*>(scratch);
  return shape.float32
             ? Launch(shape, chunks, static_cast<const float*>(logits), draws, sampling, sums, results, tokens, stream)
             : Launch(shape, chunks, static_cast<const bf16*>(logits), draws, sampling, sums, results, tokens, stream);
}

}  // namespace syncopate::rollouter
