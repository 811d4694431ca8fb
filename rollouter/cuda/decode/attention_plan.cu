#include "rollouter/cuda/decode/attention_line.cuh"

namespace syncopate::rollouter {
namespace {

using model::kAllLanes;
using model::kWarp;

constexpr int kPlanThreads = 1024;
constexpr int kMostRowsEach = kMaxAttentionRows / kPlanThreads;
static_assert(kMaxAttentionRows % kPlanThreads == 0);

// A head of a row costs a block this many tiles beside its own: to begin it and to merge its parts. Where a piece is of
// whole heads that is counted, or those with many short ones would take the longest.
constexpr int kTilesToBegin = 6;

// Row r has [before[r], before[r + 1]) times kv_heads of a line: its tiles, or what they cost.
struct Line {
  const int* before;
  int rows, kv_heads;

  __device__ __forceinline__ long size() const { return static_cast<long>(before[rows]) * kv_heads; }
  __device__ __forceinline__ long GetBegin(int row) const { return static_cast<long>(before[row]) * kv_heads; }
  // Of a head of it.
  __device__ __forceinline__ int SizeOf(int row) const { return before[row + 1] - before[row]; }
  // The last row that begins at or before `at`.
  __device__ __forceinline__ int RowAt(long at) const {
    int low = 0, high = rows - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (GetBegin(middle) <= at) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

// A piece: from tile `tile` of a head of a row on.
struct Piece {
  int row = 0, head = 0, tile = 0;
  int count = 0;  // tiles
};

__device__ __forceinline__ Piece PieceAnywhere(const Line& tiles, int piece, long used) {
  const long begin = PieceBegin(piece, tiles.size(), used), end = PieceBegin(piece + 1, tiles.size(), used);
  const int row = tiles.RowAt(begin), size = tiles.SizeOf(row);
  const int into = static_cast<int>(begin - tiles.GetBegin(row));
  return {row, into / size, into % size, static_cast<int>(end - begin)};
}

// The first head that begins at or after a piece's share of the costs: `count` is of the tiles before it.
__device__ __forceinline__ Piece HeadFrom(const Line& tiles, const Line& costs, long at) {
  if (at >= costs.size()) return {costs.rows, 0, 0, static_cast<int>(tiles.size())};
  const int row = costs.RowAt(at), size = costs.SizeOf(row);
  const int head = static_cast<int>((at - costs.GetBegin(row) + size - 1) / size);  // may be the one after its last
  return {row, head, 0, static_cast<int>(tiles.GetBegin(row)) + head * tiles.SizeOf(row)};
}

__device__ __forceinline__ Piece PieceBetweenRows(const Line& tiles, const Line& costs, int piece, long used) {
  Piece begin = HeadFrom(tiles, costs, PieceBegin(piece, costs.size(), used));
  const Piece end = HeadFrom(tiles, costs, PieceBegin(piece + 1, costs.size(), used));
  const int before = begin.count;
  if (end.count == before) return {};  // nothing begins in it
  if (begin.head == tiles.kv_heads) begin = {tiles.RowAt(before), 0, 0, 0};
  begin.count = end.count - before;
  return begin;
}

// Sums over rows, by all threads of the block: of their tiles, and `more` for each row that has any.
__device__ __forceinline__ void SumTiles(const PagedRows& rows, int window, int more, int* before, int* warps) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  int tiles[kMostRowsEach], sum = 0;  // of this thread's rows
#pragma unroll
  for (int i = 0; i < kMostRowsEach; ++i) {
    const int row = thread * kMostRowsEach + i;
    tiles[i] = row < rows.rows ? TilesOfRow(rows, row, window) : 0;
    if (tiles[i] > 0) tiles[i] += more;
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
  __shared__ int before[kMaxAttentionRows + 1], costs[kMaxAttentionRows + 1], warps[kPlanThreads / kWarp];
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  SumTiles(rows, window, /*more=*/0, before, warps);
  if (between_rows) SumTiles(rows, window, kTilesToBegin, costs, warps);
  const int thread = static_cast<int>(threadIdx.x);
  for (int row = thread; row <= rows.rows; row += kPlanThreads) row_tiles[row] = before[row];
  const Line line = {before, rows.rows, kv_heads};
  const long used = UsedPieces(pieces, line.size());
  for (int c = thread; c < pieces; c += kPlanThreads) {
    Piece piece;
    if (c < used) {
      piece =
          between_rows ? PieceBetweenRows(line, {costs, rows.rows, kv_heads}, c, used) : PieceAnywhere(line, c, used);
    }
    cuts[2 * c] = make_int4(piece.row, piece.head, piece.tile, piece.count);
    cuts[2 * c + 1] = make_int4(rows.lengths[piece.row], line.SizeOf(piece.row), rows.slots[piece.row], 0);
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
