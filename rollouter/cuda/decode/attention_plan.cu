#include "rollouter/cuda/decode/attention_line.cuh"

namespace syncopate::rollouter {
namespace {

using model::kAllLanes;
using model::kWarp;

constexpr int kPlanThreads = 1024;
constexpr int kMostRowsEach = kMaxAttentionRows / kPlanThreads;
static_assert(kMaxAttentionRows % kPlanThreads == 0);

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

// Sums over the tiles of rows before each, by all threads of the block: before[row], up to before[rows.rows].
__device__ __forceinline__ void SumTiles(const PagedRows& rows, int window, int* before, int* warps) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  int tiles[kMostRowsEach], sum = 0;  // of this thread's rows
#pragma unroll
  for (int i = 0; i < kMostRowsEach; ++i) {
    const int row = thread * kMostRowsEach + i;
    tiles[i] = row < rows.rows ? TilesOfRow(rows, row, window) : 0;
    sum += tiles[i];
  }
#pragma unroll
  for (int offset = 1; offset < kWarp; offset <<= 1) {
    const int other = __shfl_up_sync(kAllLanes, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == kWarp - 1) warps[thread / kWarp] = sum;
  __syncthreads();
  for (int warp = 0; warp < thread / kWarp; ++warp) sum += warps[warp];
#pragma unroll
  for (int i = kMostRowsEach - 1; i >= 0; --i) {
    before[thread * kMostRowsEach + i + 1] = sum;
    sum -= tiles[i];
  }
  if (thread == 0) before[0] = 0;
  __syncthreads();
}

// One block. Row r's tiles are [row_tiles[r], row_tiles[r + 1]) times kv_heads of the line, head by head. pieces[2 c] =
// {row, head, tile of the row, tiles}, pieces[2 c + 1] = {the row's length, its tiles, its slot}.
__global__ void __launch_bounds__(kPlanThreads)
    Plan(PagedRows rows, int kv_heads, int pieces, int window, bool between_rows, int* row_tiles, int4* cuts) {
  __shared__ int before[kMaxAttentionRows + 1], warps[kPlanThreads / kWarp];
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  SumTiles(rows, window, before, warps);
  const int thread = static_cast<int>(threadIdx.x);
  for (int row = thread; row <= rows.rows; row += kPlanThreads) row_tiles[row] = before[row];
  const long tiles = static_cast<long>(before[rows.rows]) * kv_heads;
  const long used = UsedPieces(pieces, tiles);
  for (int piece = thread; piece < pieces; piece += kPlanThreads) {
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

}  // namespace

cudaError_t PlanAttention(const PagedRows& rows, const HeadCounts& heads, int32_t grid, Cuts cuts,
                          const AttentionScratch& scratch, cudaStream_t stream) {
  if (rows.rows <= 0 || rows.rows > kMaxAttentionRows) return cudaErrorInvalidValue;
  return model::LaunchChained(Plan, dim3(1), dim3(kPlanThreads), 0, stream, rows, heads.kv_heads,
                              AttentionBlocks(grid, cuts), AttentionWindow(heads, cuts), cuts != Cuts::kAnywhere,
                              scratch.row_tiles, scratch.pieces);
}

}  // namespace syncopate::rollouter
