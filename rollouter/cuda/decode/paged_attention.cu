#include <cmath>

#include "rollouter/cuda/decode/hopper.cuh"
#include "rollouter/cuda/decode/paged_attention.h"

// Of the block's five warps one asks the copy engine for tiles of keys and values, into a ring of stages in shared
// memory, and four multiply: each has 16 tokens of a tile and all query heads of the group. Scores are computed with
// tokens as the rows and query heads as the columns of a 16x8 product, values with elements of the head as rows.
//
//   stage:  keys [halves][64 tokens][64 elements], values likewise; rows of 128 bytes, swizzled by the copy engine
//   full[s]   the stage's bytes have arrived          empty[s]   all four warps are done with it
namespace syncopate::rollouter {
namespace {

using model::bf16;
using model::kAllLanes;
using model::kWarp;

constexpr int kTileTokens = 64;
constexpr int kTileBlocks = kTileTokens / kTokensPerBlock;
constexpr int kWorkers = 4;  // warps that multiply
constexpr int kThreads = (kWorkers + 1) * kWarp;
constexpr int kWorkerThreads = kWorkers * kWarp;
constexpr int kBlocksPerMultiprocessor = 2;
constexpr int kLookAhead = 4;   // tiles whose block numbers are read ahead
constexpr int kRowBytes = 128;  // of a tile in shared memory: 64 elements
constexpr int kPartExtra = 2;   // a part's highest score and total, behind its values
constexpr int kPlanThreads = 1024;
static_assert(kMaxAttentionRows <= kPlanThreads);

template <int kDim>
struct Sizes {
  static constexpr int kHalves = kDim / 64;
  static constexpr int kStages = kDim == 64 ? 6 : 3;
  static constexpr int kHalfBytes = kTileTokens * kRowBytes;
  static constexpr int kTileBytes = kHalves * kHalfBytes;  // of keys, or of values
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kSteps = kDim / 16;  // of 16 elements
};

// The bytes that a block of the kernel wants. Two blocks must fit into a multiprocessor's 228 KiB.
template <int kDim>
constexpr int SharedBytes(int group) {
  return Sizes<kDim>::kStages * Sizes<kDim>::kStageBytes + kWorkers * group * kDim * 4 + 2 * kWorkers * kMaxGroup * 4 +
         2 * Sizes<kDim>::kStages * 8 + 8;
}
static_assert(2 * (SharedBytes<64>(kMaxGroup) + 1024) <= 228 * 1024);
static_assert(2 * (SharedBytes<128>(kMaxGroup) + 1024) <= 228 * 1024);

__device__ __forceinline__ int TilesOf(int length) { return (length + kTileTokens - 1) / kTileTokens; }

__device__ __forceinline__ void WorkersBarrier() { asm volatile("bar.sync 1, %0;" ::"n"(kWorkerThreads) : "memory"); }

// How many blocks get a piece: none without a tile, since a row is merged when all pieces that it lies in have arrived,
// and an empty one never does.
__device__ __forceinline__ long UsedPieces(long blocks, long tiles) { return blocks < tiles ? blocks : tiles; }
// Piece c of the line of `tiles` tiles: [c * tiles / pieces, (c + 1) * tiles / pieces).
__device__ __forceinline__ long PieceBegin(long piece, long tiles, long pieces) { return piece * tiles / pieces; }
// The piece that holds a tile.
__device__ __forceinline__ int PieceOf(long tile, long tiles, long pieces) {
  return static_cast<int>(((tile + 1) * pieces - 1) / tiles);
}

// The last row that begins at or before `tile` of the line.
__device__ __forceinline__ int RowAt(long tile, const int* before, int rows, int kv_heads) {
  int low = 0, high = rows - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (static_cast<long>(before[middle]) * kv_heads <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// The first tile at or after `tile` that is a head's first, or the end of the line.
__device__ __forceinline__ long HeadBeginAfter(long tile, const int* before, int rows, int kv_heads) {
  if (tile >= static_cast<long>(before[rows]) * kv_heads) return tile;
  const int row = RowAt(tile, before, rows, kv_heads), size = before[row + 1] - before[row];
  const long row_begin = static_cast<long>(before[row]) * kv_heads;
  return row_begin + (tile - row_begin + size - 1) / size * size;
}

// One block. Row r's tiles are [row_tiles[r], row_tiles[r + 1]) times kv_heads of the line, head by head. pieces[2 c] =
// {row, head, tile of the row, tiles}, pieces[2 c + 1] = {the row's length, its tiles, its slot}.
__global__ void __launch_bounds__(kPlanThreads)
    Plan(PagedRows rows, int kv_heads, int pieces, bool between_rows, int* row_tiles, int4* cuts) {
  __shared__ int before[kPlanThreads + 1], warps[kPlanThreads / kWarp];
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  const int row = static_cast<int>(threadIdx.x), lane = row % kWarp;
  int sum = row < rows.rows ? TilesOf(rows.lengths[row]) : 0;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset <<= 1) {
    const int other = __shfl_up_sync(kAllLanes, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == kWarp - 1) warps[row / kWarp] = sum;
  __syncthreads();
  for (int warp = 0; warp < row / kWarp; ++warp) sum += warps[warp];
  if (row == 0) before[0] = 0;
  before[row + 1] = sum;
  __syncthreads();
  if (row <= rows.rows && row < kPlanThreads) row_tiles[row] = before[row];
  if (row == 0) row_tiles[rows.rows] = before[rows.rows];
  const long tiles = static_cast<long>(before[rows.rows]) * kv_heads;
  const long used = UsedPieces(pieces, tiles);
  for (int piece = row; piece < pieces; piece += kPlanThreads) {
    if (piece >= used) {
      cuts[2 * piece] = cuts[2 * piece + 1] = make_int4(0, 0, 0, 0);
      continue;
    }
    long begin = PieceBegin(piece, tiles, used), end = PieceBegin(piece + 1, tiles, used);
    if (between_rows) {
      begin = HeadBeginAfter(begin, before, rows.rows, kv_heads);
      end = HeadBeginAfter(end, before, rows.rows, kv_heads);
    }
    if (begin == end) {  // nothing begins in it
      cuts[2 * piece] = cuts[2 * piece + 1] = make_int4(0, 0, 0, 0);
      continue;
    }
    const int low = RowAt(begin, before, rows.rows, kv_heads);
    const int row_size = before[low + 1] - before[low];
    const int into = static_cast<int>(begin - static_cast<long>(before[low]) * kv_heads);
    cuts[2 * piece] = make_int4(low, into / row_size, into % row_size, static_cast<int>(end - begin));
    cuts[2 * piece + 1] = make_int4(rows.lengths[low], row_size, rows.slots[low], 0);
  }
}

// A tile of the line.
struct Cursor {
  int row = 0, head = 0, tile = 0;
  int length = 0, tiles = 0, slot = 0;  // of the row

  __device__ __forceinline__ bool LastOfRow() const { return tile == tiles - 1; }
  __device__ __forceinline__ void NextHead(const PagedRows& rows, int kv_heads) {
    tile = 0;
    if (++head < kv_heads) return;
    head = 0;
    do {
      if (++row >= rows.rows) return;
      length = rows.lengths[row];
      slot = rows.slots[row];
      tiles = TilesOf(length);
    } while (tiles == 0);
  }
  __device__ __forceinline__ void Next(const PagedRows& rows, int kv_heads) {
    if (++tile == tiles) NextHead(rows, kv_heads);
  }
};

struct Shared {
  uint32_t stages = 0;  // addresses in shared memory
  uint32_t full = 0, empty = 0;
  float* values = nullptr;   // [kWorkers][group][dim]
  float* highest = nullptr;  // [kWorkers][kMaxGroup]
  float* totals = nullptr;   // likewise
  int* last = nullptr;       // whether this block merges the row
};

struct Call {
  PagedRows rows;
  int kv_heads = 0;
  int group = 0;            // query heads of a key/value head
  int first_block = 0;      // of the layer in the storage
  bool wait_first = false;  // before anything is read
  float scale = 0;          // of scores, as powers of two
  const int* row_tiles = nullptr;
  const int4* pieces = nullptr;
  float* parts = nullptr;
  int* arrivals = nullptr;
  const bf16* queries = nullptr;
  bf16* out = nullptr;
};

// What the asking warp knows of a tile ahead of time.
struct Request {
  int block = 0;  // of this lane's box
  int head = 0;
  int blocks = 0;  // of the tile that hold tokens
  bool written_now = false;
};

template <int kDim>
__device__ __forceinline__ Request ReadAhead(const Call& call, Cursor& cursor, int box_block, bool asks) {
  Request request;
  const int left = cursor.length - cursor.tile * kTileTokens;
  request.blocks = min(kTileBlocks, (left + kTokensPerBlock - 1) / kTokensPerBlock);
  request.head = cursor.head;
  request.written_now = cursor.LastOfRow();
  if (asks && box_block < request.blocks) {
    const int64_t table = static_cast<int64_t>(cursor.slot) * call.rows.table_stride;
    request.block = call.rows.tables[table + cursor.tile * kTileBlocks + box_block];
  }
  cursor.Next(call.rows, call.kv_heads);
  return request;
}

// The asking warp. A tile takes a box for each block, half and of keys and values; a lane asks for one of them.
template <int kDim>
__device__ __forceinline__ void AskForTiles(const Call& call, const Shared& shared, const CUtensorMap* keys,
                                            const CUtensorMap* values, Cursor cursor, int count) {
  using S = Sizes<kDim>;
  constexpr int kBoxes = 2 * kTileBlocks * S::kHalves;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool asks = lane < kBoxes;
  const int of_values = lane / (kBoxes / 2), box = lane % (kBoxes / 2);
  const int box_block = box / S::kHalves, half = box % S::kHalves;
  const CUtensorMap* map = of_values != 0 ? values : keys;
  const uint32_t to =
      shared.stages + of_values * S::kTileBytes + half * S::kHalfBytes + box_block * kTokensPerBlock * kRowBytes;
  const uint64_t policy = ReadOncePolicy();
  Request ahead[kLookAhead];
#pragma unroll
  for (int i = 0; i < kLookAhead; ++i) {
    if (i < count) ahead[i] = ReadAhead<kDim>(call, cursor, box_block, asks);
  }
  bool waited = false;
  int stage = 0;
  uint32_t parity = 1;
  for (int done = 0; done < count; done += kLookAhead) {
#pragma unroll
    for (int i = 0; i < kLookAhead; ++i) {
      if (done + i >= count) break;
      const Request request = ahead[i];
      if (done + i + kLookAhead < count) ahead[i] = ReadAhead<kDim>(call, cursor, box_block, asks);
      if (!waited && (request.written_now || call.wait_first)) {
        model::WaitForEarlierKernels();
        waited = true;
      }
      WaitBarrier(shared.empty + 8 * stage, parity);
      const uint32_t full = shared.full + 8 * stage;
      if (lane == 0) ExpectBytes(full, static_cast<uint32_t>(request.blocks * kTokensPerBlock * kDim * 4));
      __syncwarp();
      if (asks && box_block < request.blocks) {
        const int piece = (call.first_block + request.block) * call.kv_heads + request.head;
        CopyBox(to + stage * S::kStageBytes, map, half * 64, 0, piece, full, policy);
      }
      if (++stage == S::kStages) stage = 0, parity ^= 1;
    }
  }
}

// What a multiplying warp has of a row so far, in the form that can be merged (Milakov and Gimelshein, arXiv
// 1805.02867). A lane has two query heads, 2 (lane % 4) and the next; of values, elements lane / 4 and lane / 4 + 8 of
// each 16.
template <int kDim>
struct Part {
  float highest[2], total[2];
  float values[Sizes<kDim>::kSteps][4];
  uint32_t queries[Sizes<kDim>::kSteps][2];

  __device__ __forceinline__ void Start(const Call& call, int row, int head) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, query_head = lane / 4;
    const int64_t first = (static_cast<int64_t>(row) * call.kv_heads + head) * call.group;
    const bf16* from = call.queries + (first + query_head) * kDim + lane % 4 * 2;
    const bool there = query_head < call.group;
#pragma unroll
    for (int step = 0; step < Sizes<kDim>::kSteps; ++step) {
      queries[step][0] = there ? *reinterpret_cast<const uint32_t*>(from + step * 16) : 0;
      queries[step][1] = there ? *reinterpret_cast<const uint32_t*>(from + step * 16 + 8) : 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) values[step][i] = 0;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) highest[i] = -INFINITY, total[i] = 0;
  }
};

// scores: of tokens lane / 4 and lane / 4 + 8 of the warp's 16, for the lane's two heads; -inf from `valid` on.
template <int kDim>
__device__ __forceinline__ void Scores(const Part<kDim>& part, uint32_t keys, float scale, int valid,
                                       float (&scores)[4]) {
  using S = Sizes<kDim>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int token = static_cast<int>(threadIdx.x) / kWarp * kTokensPerBlock + lane % 16, chunk_offset = lane / 16;
  float sums[2][4] = {};  // two chains of products
#pragma unroll
  for (int step = 0; step < S::kSteps; ++step) {
    const int chunk = step * 2 + chunk_offset;  // of 8 elements
    uint32_t a[4];
    LoadMatrices(a, keys + chunk / 8 * S::kHalfBytes + token * kRowBytes + ((chunk % 8 ^ token % 8) << 4));
    MultiplyAdd(sums[step % 2], a, part.queries[step][0], part.queries[step][1]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    scores[i] = lane / 4 + i / 2 * 8 < valid ? (sums[0][i] + sums[1][i]) * scale : -INFINITY;
  }
}

// kMasked: tokens from `valid` on have weight 0, but what lies in their place may be anything, and 0 * NaN is not 0.
template <int kDim, bool kMasked>
__device__ __forceinline__ void AddValues(Part<kDim>& part, uint32_t values, uint32_t weights_low,
                                          uint32_t weights_high, int valid) {
  using S = Sizes<kDim>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int token = static_cast<int>(threadIdx.x) / kWarp * kTokensPerBlock + lane / 16 * 8 + lane % 8;
  const int chunk_offset = lane / 8 % 2;
  uint32_t keep[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int first = lane % 4 * 2 + i * 8;
    keep[i] = (first < valid ? 0xffffu : 0) | (first + 1 < valid ? 0xffff0000u : 0);
  }
#pragma unroll
  for (int step = 0; step < S::kSteps; ++step) {
    const int chunk = step * 2 + chunk_offset;
    uint32_t a[4];
    LoadTransposed(a, values + chunk / 8 * S::kHalfBytes + token * kRowBytes + ((chunk % 8 ^ token % 8) << 4));
    if (kMasked) a[0] &= keep[0], a[1] &= keep[0], a[2] &= keep[1], a[3] &= keep[1];
    MultiplyAdd(part.values[step], a, weights_low, weights_high);
  }
}

template <int kDim>
__device__ __forceinline__ void AddTile(Part<kDim>& part, uint32_t stage, float scale, int valid) {
  float s[4];
  Scores<kDim>(part, stage, scale, valid, s);
  float peak[2] = {fmaxf(s[0], s[2]), fmaxf(s[1], s[3])};
#pragma unroll
  for (int offset = 4; offset < kWarp; offset <<= 1) {
#pragma unroll
    for (int i = 0; i < 2; ++i) peak[i] = fmaxf(peak[i], __shfl_xor_sync(kAllLanes, peak[i], offset));
  }
  if (__any_sync(kAllLanes, peak[0] > part.highest[0] || peak[1] > part.highest[1])) {
    float kept[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float highest = fmaxf(part.highest[i], peak[i]);
      kept[i] = Exp2(part.highest[i] - highest);  // 0 at the first tile: 2^-inf
      part.total[i] *= kept[i];
      part.highest[i] = highest;
    }
#pragma unroll
    for (int step = 0; step < Sizes<kDim>::kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) part.values[step][i] *= kept[i % 2];
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) s[i] = Exp2(s[i] - part.highest[i % 2]);
  part.total[0] += s[0] + s[2];
  part.total[1] += s[1] + s[3];
  const uint32_t low = Transpose(Pack(s[0], s[1])), high = Transpose(Pack(s[2], s[3]));
  if (valid < kTokensPerBlock) {
    AddValues<kDim, true>(part, stage + Sizes<kDim>::kTileBytes, low, high, valid);
  } else {
    AddValues<kDim, false>(part, stage + Sizes<kDim>::kTileBytes, low, high, valid);
  }
}

// The warp's part to shared memory.
template <int kDim>
__device__ __forceinline__ void PutDown(Part<kDim>& part, const Shared& shared, int group) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int offset = 4; offset < kWarp; offset <<= 1) {
      part.total[i] += __shfl_xor_sync(kAllLanes, part.total[i], offset);
    }
    const int head = lane % 4 * 2 + i;
    if (lane < 4) {
      shared.highest[warp * kMaxGroup + head] = part.highest[i];
      shared.totals[warp * kMaxGroup + head] = part.total[i];
    }
    if (head >= group) continue;
    float* to = shared.values + (warp * group + head) * kDim + lane / 4;
#pragma unroll
    for (int step = 0; step < Sizes<kDim>::kSteps; ++step) {
      to[step * 16] = part.values[step][i];
      to[step * 16 + 8] = part.values[step][i + 2];
    }
  }
}

// Two neighbouring elements of one head, merged.
struct Merged {
  float highest = -INFINITY, total = 0, x = 0, y = 0;

  __device__ __forceinline__ void Add(float more_highest, float more_total, float more_x, float more_y) {
    const float peak = fmaxf(highest, more_highest), kept = Exp2(highest - peak), weight = Exp2(more_highest - peak);
    total = total * kept + more_total * weight;
    x = x * kept + more_x * weight;
    y = y * kept + more_y * weight;
    highest = peak;
  }
};

__device__ __forceinline__ uint32_t Divided(const Merged& merged) {
  const float inverse = 1.0f / merged.total;
  return Pack(merged.x * inverse, merged.y * inverse);
}

// Warp 0 always has a token of the part; one without weighs 2^-inf. So it is merged first.
template <int kDim>
__device__ __forceinline__ Merged MergeWarps(const Shared& shared, int group, int head, int element) {
  Merged merged;
#pragma unroll
  for (int warp = 0; warp < kWorkers; ++warp) {
    const float2 pair = *reinterpret_cast<const float2*>(shared.values + (warp * group + head) * kDim + element);
    merged.Add(shared.highest[warp * kMaxGroup + head], shared.totals[warp * kMaxGroup + head], pair.x, pair.y);
  }
  return merged;
}

// A block has at most two parts of rows that other blocks have parts of as well: the one it begins with and the one it
// ends with.
template <int kDim>
__device__ __forceinline__ float* PartPlace(const Call& call, int piece, int which) {
  return call.parts + (static_cast<int64_t>(piece) * 2 + which) * call.group * (kDim + kPartExtra);
}

// Another block has the rest of the row: leaves this part behind, and merges all of them if it is the last to come.
template <int kDim>
__device__ __forceinline__ void MergeBlocks(const Call& call, const Shared& shared, const Cursor& at) {
  __threadfence();
  WorkersBarrier();
  const long tiles = static_cast<long>(call.row_tiles[call.rows.rows]) * call.kv_heads;
  const long pieces = UsedPieces(gridDim.x, tiles);
  const long begin = static_cast<long>(call.row_tiles[at.row]) * call.kv_heads + static_cast<long>(at.head) * at.tiles;
  const int first = PieceOf(begin, tiles, pieces), last = PieceOf(begin + at.tiles - 1, tiles, pieces);
  int* arrived = call.arrivals + at.row * call.kv_heads + at.head;
  if (threadIdx.x == 0) *shared.last = atomicAdd(arrived, 1) == last - first;
  WorkersBarrier();
  if (*shared.last == 0) return;
  __threadfence();
  // The first block's part is the one it ended with, unless it begins there.
  const int which = PieceBegin(first, tiles, pieces) == begin ? 0 : 1;
  bf16* out = call.out + (static_cast<int64_t>(at.row) * call.kv_heads + at.head) * call.group * kDim;
  for (int i = static_cast<int>(threadIdx.x); i < call.group * kDim / 2; i += kWorkerThreads) {
    const int head = i / (kDim / 2), element = i % (kDim / 2) * 2;
    Merged merged;
    for (int piece = first; piece <= last; ++piece) {
      const float* part = PartPlace<kDim>(call, piece, piece == first ? which : 0) + head * (kDim + kPartExtra);
      merged.Add(__ldcg(part + kDim), __ldcg(part + kDim + 1), __ldcg(part + element), __ldcg(part + element + 1));
    }
    *reinterpret_cast<uint32_t*>(out + head * kDim + element) = Divided(merged);
  }
  if (threadIdx.x == 0) *arrived = 0;
}

// The part that the four warps have put down is over: writes the row's result, or this block's share of it.
template <int kDim>
__device__ __forceinline__ void FinishPart(const Call& call, const Shared& shared, const Cursor& at, bool whole,
                                           int which) {
  bf16* out = call.out + (static_cast<int64_t>(at.row) * call.kv_heads + at.head) * call.group * kDim;
  for (int i = static_cast<int>(threadIdx.x); i < call.group * kDim / 2; i += kWorkerThreads) {
    const int head = i / (kDim / 2), element = i % (kDim / 2) * 2;
    const Merged merged = MergeWarps<kDim>(shared, call.group, head, element);
    if (whole) {
      *reinterpret_cast<uint32_t*>(out + head * kDim + element) = Divided(merged);
      continue;
    }
    float* part = PartPlace<kDim>(call, static_cast<int>(blockIdx.x), which) + head * (kDim + kPartExtra);
    part[element] = merged.x;
    part[element + 1] = merged.y;
    if (element == 0) part[kDim] = merged.highest, part[kDim + 1] = merged.total;
  }
  if (!whole) MergeBlocks<kDim>(call, shared, at);
}

// The four multiplying warps.
template <int kDim>
__device__ __forceinline__ void Attend(const Call& call, const Shared& shared, Cursor at, int count) {
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  Part<kDim> part;
  part.Start(call, at.row, at.head);
  int stage = 0, which = 0, first_tile = at.tile;
  uint32_t parity = 0;
  for (int done = 1; done <= count; ++done) {
    WaitBarrier(shared.full + 8 * stage, parity);
    const int valid = at.length - at.tile * kTileTokens - warp * kTokensPerBlock;
    if (valid > 0) AddTile<kDim>(part, shared.stages + stage * Sizes<kDim>::kStageBytes, call.scale, valid);
    __syncwarp();
    if (threadIdx.x % kWarp == 0) Arrive(shared.empty + 8 * stage);
    if (++stage == Sizes<kDim>::kStages) stage = 0, parity ^= 1;
    const bool row_ends = at.LastOfRow();
    if (!row_ends && done < count) {
      ++at.tile;
      continue;
    }
    PutDown<kDim>(part, shared, call.group);
    WorkersBarrier();
    FinishPart<kDim>(call, shared, at, row_ends && first_tile == 0, which);
    WorkersBarrier();
    if (done == count) return;
    which = 1;
    first_tile = 0;
    at.NextHead(call.rows, call.kv_heads);
    part.Start(call, at.row, at.head);
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    AttendPieces(const __grid_constant__ CUtensorMap keys, const __grid_constant__ CUtensorMap values,
                 const __grid_constant__ Call call) {
  using S = Sizes<kDim>;
  extern __shared__ __align__(1024) uint8_t memory[];  // the swizzle counts rows from there
  Shared shared;
  shared.stages = SharedAddress(memory);
  shared.values = reinterpret_cast<float*>(memory + S::kStages * S::kStageBytes);
  shared.highest = shared.values + kWorkers * call.group * kDim;
  shared.totals = shared.highest + kWorkers * kMaxGroup;
  uint64_t* barriers = reinterpret_cast<uint64_t*>(shared.totals + kWorkers * kMaxGroup);
  shared.full = SharedAddress(barriers);
  shared.empty = shared.full + 8 * S::kStages;
  shared.last = reinterpret_cast<int*>(barriers + 2 * S::kStages);
  const int4 piece = call.pieces[2 * blockIdx.x], row = call.pieces[2 * blockIdx.x + 1];
  const Cursor cursor = {piece.x, piece.y, piece.z, row.x, row.y, row.z};
  if (threadIdx.x == 0) {
    if (shared.stages % 1024 != 0) __trap();
    for (int stage = 0; stage < S::kStages; ++stage) {
      InitBarrier(shared.full + 8 * stage, 1);
      InitBarrier(shared.empty + 8 * stage, kWorkers);
    }
    PublishBarriers();
  }
  __syncthreads();
  if (piece.w == 0) {
    model::WaitForEarlierKernels();
    return;
  }
  if (threadIdx.x >= kWorkerThreads) {
    PrefetchMap(&keys);
    PrefetchMap(&values);
    AskForTiles<kDim>(call, shared, &keys, &values, cursor, piece.w);
  } else {
    Attend<kDim>(call, shared, cursor, piece.w);
  }
}

bool Fits(const HeadCounts& heads) {
  return (heads.head_dim == 64 || heads.head_dim == 128) && heads.kv_heads > 0 && heads.heads % heads.kv_heads == 0 &&
         heads.heads / heads.kv_heads <= kMaxGroup;
}

// The limits are the process's, whatever group a model has.
template <int kDim>
cudaError_t Prepare() {
  const cudaError_t error = cudaFuncSetAttribute(AttendPieces<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 SharedBytes<kDim>(kMaxGroup));
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(AttendPieces<kDim>, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

template <int kDim>
cudaError_t Launch(const StorageMaps& maps, const Call& call, int32_t grid, cudaStream_t stream) {
  return model::LaunchChained(AttendPieces<kDim>, dim3(static_cast<unsigned>(grid)), dim3(kThreads),
                              SharedBytes<kDim>(call.group), stream, maps.keys, maps.values, call);
}

}  // namespace

CUresult DescribeStorage(decltype(&::cuTensorMapEncodeTiled) encode, const BlockStorage& storage,
                         const HeadCounts& heads, StorageMaps* maps) {
  if (!Fits(heads)) return CUDA_ERROR_INVALID_VALUE;
  const cuuint64_t dim = static_cast<cuuint64_t>(heads.head_dim);
  const cuuint64_t sizes[3] = {dim, kTokensPerBlock,
                               static_cast<cuuint64_t>(storage.layers) * storage.blocks * heads.kv_heads};
  const cuuint64_t strides[2] = {dim * sizeof(bf16), kTokensPerBlock * dim * sizeof(bf16)};
  const cuuint32_t box[3] = {64, kTokensPerBlock, 1}, steps[3] = {1, 1, 1};
  for (auto [map, data] : {std::pair(&maps->keys, storage.keys), std::pair(&maps->values, storage.values)}) {
    const CUresult result = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, data, sizes, strides, box, steps,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

AttentionScratchBytes ScratchBytes(const HeadCounts& heads, int32_t rows, int32_t grid) {
  const int64_t part = static_cast<int64_t>(heads.heads / heads.kv_heads) * (heads.head_dim + kPartExtra);
  return {.row_tiles = (rows + 1) * int64_t{sizeof(int32_t)},
          .pieces = 2 * grid * int64_t{sizeof(int4)},
          .parts = 2 * grid * part * int64_t{sizeof(float)},
          .arrivals = static_cast<int64_t>(rows) * heads.kv_heads * int64_t{sizeof(int32_t)}};
}

int32_t AttentionGrid(int32_t multiprocessors) { return multiprocessors * kBlocksPerMultiprocessor; }

cudaError_t PrepareAttention(const HeadCounts& heads) {
  if (!Fits(heads)) return cudaErrorInvalidValue;
  return heads.head_dim == 64 ? Prepare<64>() : Prepare<128>();
}

cudaError_t PlanAttention(const PagedRows& rows, int32_t kv_heads, int32_t grid, Cuts cuts,
                          const AttentionScratch& scratch, cudaStream_t stream) {
  if (rows.rows <= 0 || rows.rows > kMaxAttentionRows) return cudaErrorInvalidValue;
  return model::LaunchChained(Plan, dim3(1), dim3(kPlanThreads), 0, stream, rows, kv_heads, grid,
                              cuts == Cuts::kBetweenRows, scratch.row_tiles, scratch.pieces);
}

cudaError_t AttendPaged(const PagedRows& rows, const HeadCounts& heads, const StorageMaps& maps,
                        const BlockStorage& storage, int32_t layer, int32_t grid, const AttentionScratch& scratch,
                        const void* queries, void* out, RowsOf rows_of, cudaStream_t stream) {
  if (!Fits(heads) || layer < 0 || layer >= storage.layers) return cudaErrorInvalidValue;
  constexpr float kLog2E = 1.4426950408889634f;
  Call call;
  call.rows = rows;
  call.kv_heads = heads.kv_heads;
  call.group = heads.heads / heads.kv_heads;
  call.first_block = layer * storage.blocks;
  call.scale = kLog2E / std::sqrt(static_cast<float>(heads.head_dim));
  call.row_tiles = scratch.row_tiles;
  call.pieces = scratch.pieces;
  call.parts = scratch.parts;
  call.arrivals = scratch.arrivals;
  call.wait_first = rows_of == RowsOf::kAnySequences;
  call.queries = static_cast<const bf16*>(queries);
  call.out = static_cast<bf16*>(out);
  return heads.head_dim == 64 ? Launch<64>(maps, call, grid, stream) : Launch<128>(maps, call, grid, stream);
}

}  // namespace syncopate::rollouter
