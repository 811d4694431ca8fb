#include <cmath>
#include <limits>

#include "rollouter/cuda/decode/attention_line.cuh"
#include "rollouter/cuda/decode/attention_part.cuh"
#include "rollouter/cuda/decode/hopper.cuh"
#include "rollouter/cuda/decode/paged_attention.h"

// The warps of a block have two roles. One warp asks the copy engine for tiles of keys and values, into a ring of
// stages in shared memory. Four warps, or two sets of four, multiply: each has 16 tokens of a tile and all query heads
// of the group, for one query token or for the tokens of a window that belong to its set.
//
//   full[s]   the stage's bytes have arrived          empty[s]   all multiplying warps are done with it
namespace syncopate::rollouter {
namespace {

constexpr int kBlocksPerMultiprocessor = 2;  // for rows that attend alone; one block for joint rows
constexpr int kLookAhead = 4;                // tiles whose block numbers are read ahead
constexpr int kPartExtra = 2;                // a part's highest score and total, after its values
constexpr int kJointSets = 2;

// The number of tokens whose queries and sums a joint set's warps store in registers.
constexpr int JointQueries(int dim) { return dim == 64 ? 4 : 2; }

template <int kDim, bool kJoint>
struct Kernel : TileSizes<kDim> {
  static constexpr int kHeadDim = kDim;
  static constexpr bool kIsJoint = kJoint;
  static constexpr int kStages = kDim == 64 ? 6 : kJoint ? 4 : 3;
  static constexpr int kSets = kJoint ? kJointSets : 1;
  static constexpr int kQueries = kJoint ? JointQueries(kDim) : 1;  // tokens of one set
  static constexpr int kWindow = kSets * kQueries;
  static constexpr int kWorkers = kSets * kChunks;  // warps that multiply
  static constexpr int kWorkerThreads = kWorkers * kWarp;
  static constexpr int kThreads = kWorkerThreads + kWarp;
  static constexpr int kBlocks = kJoint ? 1 : kBlocksPerMultiprocessor;

  // The bytes of shared memory that a block needs.
  static constexpr int SharedBytes(int group) {
    return kStages * TileSizes<kDim>::kStageBytes + kWindow * kChunks * (group * kDim + 2 * kMaxGroup) * 4 +
           2 * kStages * 8 + 4 + kWindow * 4;
  }
};
// All blocks of a multiprocessor must fit into its 228 KiB.
template <class K>
constexpr bool kHasRoom = K::kBlocks*(K::SharedBytes(kMaxGroup) + 1024) <= 228 * 1024;
static_assert(kHasRoom<Kernel<64, false>> && kHasRoom<Kernel<128, false>>);
static_assert(kHasRoom<Kernel<64, true>> && kHasRoom<Kernel<128, true>>);

struct Shared {
  uint32_t stages = 0;  // addresses in shared memory
  uint32_t full = 0, empty = 0;
  float* values = nullptr;   // [window][kChunks][group][dim]
  float* highest = nullptr;  // [window][kChunks][kMaxGroup]
  float* totals = nullptr;   // dimensions as `highest`
  int* last = nullptr;       // whether this block merges the row
  int* rows = nullptr;       // [window]: the row of each result; -1: none
};

struct Call {
  PagedRows rows;
  int kv_heads = 0;
  int group = 0;            // query heads per key/value head
  int first_piece = 0;      // the layer's first piece in the storage
  bool wait_first = false;  // wait for the previous kernel before any read
  float scale = 0;          // factor of scores, for powers of two
  const int* row_tiles = nullptr;
  const int4* pieces = nullptr;
  float* parts = nullptr;
  int* arrivals = nullptr;
  const bf16* queries = nullptr;
  bf16* out = nullptr;
};

template <class K>
__device__ __forceinline__ void WorkersBarrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(K::kWorkerThreads) : "memory");
}

// Returns the offset of the first head of a row's group, in queries and in results.
template <class K>
__device__ __forceinline__ int64_t GroupPlace(const Call& call, int row, int head) {
  return (static_cast<int64_t>(row) * call.kv_heads + head) * call.group * K::kHeadDim;
}

// The asking warp's information on a tile, read ahead of time.
struct Request {
  int block = 0;  // of this lane's box
  int head = 0;
  int blocks = 0;  // blocks of the tile that contain tokens
  bool written_now = false;
};

template <class K>
__device__ __forceinline__ Request ReadAhead(const Call& call, Cursor& cursor, int box_block, bool asks) {
  Request request;
  const int left = cursor.length - cursor.tile * kTileTokens;
  request.blocks = min(kChunks, (left + kTokensPerBlock - 1) / kTokensPerBlock);
  request.head = cursor.head;
  request.written_now = cursor.LastOfRow();
  if (asks && box_block < request.blocks) {
    const int64_t table = static_cast<int64_t>(cursor.slot) * call.rows.table_stride;
    request.block = call.rows.tables[table + cursor.tile * kChunks + box_block];
  }
  cursor.Next<K::kWindow>(call.rows, call.kv_heads);
  return request;
}

// The role of the asking warp. A tile has one box for each block and half, of keys and of values; each lane asks for
// one box.
template <class K>
__device__ __forceinline__ void AskForTiles(const Call& call, const Shared& shared, const CUtensorMap* keys,
                                            const CUtensorMap* values, Cursor cursor, int count) {
  constexpr int kBoxes = 2 * kChunks * K::kHalves;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool asks = lane < kBoxes;
  const int of_values = lane / (kBoxes / 2), box = lane % (kBoxes / 2);
  const int box_block = box / K::kHalves, half = box % K::kHalves;
  const CUtensorMap* map = of_values != 0 ? values : keys;
  const uint32_t to =
      shared.stages + of_values * K::kTileBytes + half * K::kHalfBytes + box_block * kTokensPerBlock * kRowBytes;
  const uint64_t policy = ReadOncePolicy();
  Request ahead[kLookAhead];
#pragma unroll
  for (int i = 0; i < kLookAhead; ++i) {
    if (i < count) ahead[i] = ReadAhead<K>(call, cursor, box_block, asks);
  }
  bool waited = false;
  int stage = 0;
  uint32_t parity = 1;
  for (int done = 0; done < count; done += kLookAhead) {
#pragma unroll
    for (int i = 0; i < kLookAhead; ++i) {
      if (done + i >= count) break;
      const Request request = ahead[i];
      if (done + i + kLookAhead < count) ahead[i] = ReadAhead<K>(call, cursor, box_block, asks);
      if (!waited && (request.written_now || call.wait_first)) {
        model::WaitForEarlierKernels();
        waited = true;
      }
      WaitBarrier(shared.empty + 8 * stage, parity);
      const uint32_t full = shared.full + 8 * stage;
      if (lane == 0) ExpectBytes(full, static_cast<uint32_t>(request.blocks * kTokensPerBlock * K::kHeadDim * 4));
      __syncwarp();
      if (asks && box_block < request.blocks) {
        const int piece = (call.first_piece + request.block) * call.kv_heads + request.head;
        CopyBox(to + stage * K::kStageBytes, map, half * 64, 0, piece, full, policy);
      }
      if (++stage == K::kStages) stage = 0, parity ^= 1;
    }
  }
}

// Writes a token's part of chunk `chunk` to shared memory; `place` is the token's index in its window.
template <class K>
__device__ __forceinline__ void PutDown(Part<K::kHeadDim>& part, const Shared& shared, int group, int place,
                                        int chunk) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, at = place * kChunks + chunk;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int offset = 4; offset < kWarp; offset <<= 1) {
      part.total[i] = __fadd_rn(part.total[i], __shfl_xor_sync(kAllLanes, part.total[i], offset));
    }
    const int head = lane % 4 * 2 + i;
    if (lane < 4) {
      shared.highest[at * kMaxGroup + head] = part.highest[i];
      shared.totals[at * kMaxGroup + head] = part.total[i];
    }
    if (head >= group) continue;
    float* to = shared.values + (at * group + head) * K::kHeadDim + lane / 4;
#pragma unroll
    for (int step = 0; step < K::kSteps; ++step) {
      to[step * 16] = part.values[step][i];
      to[step * 16 + 8] = part.values[step][i + 2];
    }
  }
}

// Merges the chunks' parts. The first chunk always has a token, so it is merged first; a chunk without one has weight
// 2^-inf.
template <class K>
__device__ __forceinline__ Merged MergeChunks(const Shared& shared, int group, int place, int head, int element) {
  Merged merged;
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const int at = place * kChunks + chunk;
    const float2 pair = *reinterpret_cast<const float2*>(shared.values + (at * group + head) * K::kHeadDim + element);
    merged.Add(shared.highest[at * kMaxGroup + head], shared.totals[at * kMaxGroup + head], pair.x, pair.y);
  }
  return merged;
}

// Returns the place of a part of a row that several blocks share. A block has at most two such parts: the one it begins
// with and the one it ends with.
template <class K>
__device__ __forceinline__ float* PartPlace(const Call& call, int piece, int which) {
  return call.parts + (static_cast<int64_t>(piece) * 2 + which) * call.group * (K::kHeadDim + kPartExtra);
}

// Called if other blocks have parts of the row: publishes this part, and merges all parts if this block is the last to
// arrive.
template <class K>
__device__ __forceinline__ void MergeBlocks(const Call& call, const Shared& shared, const Cursor& at) {
  constexpr int kDim = K::kHeadDim;
  __threadfence();
  WorkersBarrier<K>();
  const long tiles = static_cast<long>(call.row_tiles[call.rows.rows]) * call.kv_heads;
  const long pieces = UsedPieces(gridDim.x, tiles);
  const long begin = static_cast<long>(call.row_tiles[at.row]) * call.kv_heads + static_cast<long>(at.head) * at.tiles;
  const int first = GetPiece(begin, tiles, pieces), last = GetPiece(begin + at.tiles - 1, tiles, pieces);
  int* arrived = call.arrivals + at.row * call.kv_heads + at.head;
  if (threadIdx.x == 0) *shared.last = atomicAdd(arrived, 1) == last - first;
  WorkersBarrier<K>();
  if (*shared.last == 0) return;
  __threadfence();
  // The first block's part is the one it ended with, unless the row begins where that block begins.
  const int which = PieceBegin(first, tiles, pieces) == begin ? 0 : 1;
  bf16* out = call.out + GroupPlace<K>(call, at.row, at.head);
  for (int i = static_cast<int>(threadIdx.x); i < call.group * kDim / 2; i += K::kWorkerThreads) {
    const int head = i / (kDim / 2), element = i % (kDim / 2) * 2;
    Merged merged;
    for (int piece = first; piece <= last; ++piece) {
      const float* part = PartPlace<K>(call, piece, piece == first ? which : 0) + head * (kDim + kPartExtra);
      merged.Add(__ldcg(part + kDim), __ldcg(part + kDim + 1), __ldcg(part + element), __ldcg(part + element + 1));
    }
    *reinterpret_cast<uint32_t*>(out + head * kDim + element) = merged.Divided();
  }
  if (threadIdx.x == 0) *arrived = 0;
}

// Called when the warps have written a part: writes the row's result, or this block's part of it.
template <class K>
__device__ __forceinline__ void FinishPart(const Call& call, const Shared& shared, const Cursor& at, bool whole,
                                           int which) {
  constexpr int kDim = K::kHeadDim;
  bf16* out = call.out + GroupPlace<K>(call, at.row, at.head);
  for (int i = static_cast<int>(threadIdx.x); i < call.group * kDim / 2; i += K::kWorkerThreads) {
    const int head = i / (kDim / 2), element = i % (kDim / 2) * 2;
    const Merged merged = MergeChunks<K>(shared, call.group, /*place=*/0, head, element);
    if (whole) {
      *reinterpret_cast<uint32_t*>(out + head * kDim + element) = merged.Divided();
      continue;
    }
    float* part = PartPlace<K>(call, static_cast<int>(blockIdx.x), which) + head * (kDim + kPartExtra);
    part[element] = merged.x;
    part[element + 1] = merged.y;
    if (element == 0) part[kDim] = merged.highest, part[kDim + 1] = merged.total;
  }
  if (!whole) MergeBlocks<K>(call, shared, at);
}

// Writes the results of a window, which is always complete.
template <class K>
__device__ __forceinline__ void FinishWindow(const Call& call, const Shared& shared, int kv_head) {
  constexpr int kDim = K::kHeadDim;
  const int each = call.group * kDim / 2;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < K::kWindow * each; i += K::kWorkerThreads) {
    const int place = i / each, head = i % each / (kDim / 2), element = i % (kDim / 2) * 2, row = shared.rows[place];
    if (row < 0) continue;
    const Merged merged = MergeChunks<K>(shared, call.group, place, head, element);
    bf16* out = call.out + GroupPlace<K>(call, row, kv_head);
    *reinterpret_cast<uint32_t*>(out + head * kDim + element) = merged.Divided();
  }
}

// The role of a multiplying warp.
template <class K>
struct Worker {
  static constexpr int kQueries = K::kQueries;
  const Call& call;
  const Shared& shared;
  const int chunk, set;
  Part<K::kHeadDim> parts[kQueries];
  int lengths[kQueries];  // tokens that each query attends to; 0: the query does not exist

  __device__ __forceinline__ Worker(const Call& its_call, const Shared& its_shared)
      : call(its_call),
        shared(its_shared),
        chunk(static_cast<int>(threadIdx.x) / kWarp % kChunks),
        set(static_cast<int>(threadIdx.x) / kWarp / kChunks) {}

  __device__ __forceinline__ void Start(const Cursor& at) {
    if constexpr (K::kIsJoint) {
      StartWindow(at);
    } else {
      lengths[0] = at.length;
      parts[0].Start(call.queries + GroupPlace<K>(call, at.row, at.head), call.group);
    }
  }

  __device__ __forceinline__ void StartWindow(const Cursor& at) {
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
      const int place = set * kQueries + q, behind = (at.length - 1) % K::kWindow - place;
      const bool may_be = behind >= 0 && behind <= at.row;
      const int row = may_be ? at.row - behind : at.row;
      // Queries are loaded even if the row is not in the window, so that all loads are in flight together; such results
      // are not written.
      parts[q].Start(call.queries + GroupPlace<K>(call, row, at.head), call.group);
      const bool there = may_be && call.rows.lengths[row] == at.length - behind && call.rows.slots[row] == at.slot;
      lengths[q] = there ? at.length - behind : 0;
      if (chunk == 0 && threadIdx.x % kWarp == 0) shared.rows[place] = there ? row : -1;
    }
  }

  __device__ __forceinline__ void AddTile(int tile, uint32_t stage) {
    int valid[kQueries], most = 0;
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
      valid[q] = lengths[q] - tile * kTileTokens - chunk * kTokensPerBlock;
      most = max(most, valid[q]);
    }
    if (most > 0) ChunkOf<K::kHeadDim, kQueries>{parts, valid, stage, chunk}.Add(call.scale);
  }

  __device__ __forceinline__ void Finish(const Cursor& at, bool whole, int which) {
#pragma unroll
    for (int q = 0; q < kQueries; ++q) PutDown<K>(parts[q], shared, call.group, set * kQueries + q, chunk);
    WorkersBarrier<K>();
    if constexpr (K::kIsJoint) {
      FinishWindow<K>(call, shared, at.head);
    } else {
      FinishPart<K>(call, shared, at, whole, which);
    }
    WorkersBarrier<K>();
  }

  // Processes all tiles of a piece.
  __device__ __forceinline__ void Attend(Cursor at, int count) {
    model::WaitForEarlierKernels();
    model::LetNextKernelStart();
    Start(at);
    int stage = 0, which = 0, first_tile = at.tile;
    uint32_t parity = 0;
    for (int done = 1; done <= count; ++done) {
      WaitBarrier(shared.full + 8 * stage, parity);
      AddTile(at.tile, shared.stages + stage * K::kStageBytes);
      __syncwarp();
      if (threadIdx.x % kWarp == 0) Arrive(shared.empty + 8 * stage);
      if (++stage == K::kStages) stage = 0, parity ^= 1;
      const bool row_ends = at.LastOfRow();
      if (!row_ends && done < count) {
        ++at.tile;
        continue;
      }
      Finish(at, row_ends && first_tile == 0, which);
      if (done == count) return;
      which = 1;
      first_tile = 0;
      at.NextHead<K::kWindow>(call.rows, call.kv_heads);
      Start(at);
    }
  }
};

template <class K>
__global__ void __launch_bounds__(K::kThreads, K::kBlocks)
    AttendPieces(const __grid_constant__ CUtensorMap keys, const __grid_constant__ CUtensorMap values,
                 const __grid_constant__ Call call) {
  extern __shared__ __align__(1024) uint8_t memory[];  // the swizzle counts rows from this alignment
  Shared shared;
  shared.stages = SharedAddress(memory);
  shared.values = reinterpret_cast<float*>(memory + K::kStages * K::kStageBytes);
  shared.highest = shared.values + K::kWindow * kChunks * call.group * K::kHeadDim;
  shared.totals = shared.highest + K::kWindow * kChunks * kMaxGroup;
  uint64_t* barriers = reinterpret_cast<uint64_t*>(shared.totals + K::kWindow * kChunks * kMaxGroup);
  shared.full = SharedAddress(barriers);
  shared.empty = shared.full + 8 * K::kStages;
  shared.last = reinterpret_cast<int*>(barriers + 2 * K::kStages);
  shared.rows = shared.last + 1;
  const int4 piece = call.pieces[2 * blockIdx.x], row = call.pieces[2 * blockIdx.x + 1];
  const Cursor cursor = {piece.x, piece.y, piece.z, row.x, row.y, row.z};
  if (threadIdx.x == 0) {
    if (shared.stages % 1024 != 0) __trap();
    for (int stage = 0; stage < K::kStages; ++stage) {
      InitBarrier(shared.full + 8 * stage, 1);
      InitBarrier(shared.empty + 8 * stage, K::kWorkers);
    }
    PublishBarriers();
  }
  __syncthreads();
  if (piece.w == 0) {
    model::WaitForEarlierKernels();
    return;
  }
  if (threadIdx.x >= K::kWorkerThreads) {
    PrefetchMap(&keys);
    PrefetchMap(&values);
    AskForTiles<K>(call, shared, &keys, &values, cursor, piece.w);
  } else {
    Worker<K>(call, shared).Attend(cursor, piece.w);
  }
}

bool Fits(const HeadCounts& heads) {
  return (heads.head_dim == 64 || heads.head_dim == 128) && heads.kv_heads > 0 && heads.heads % heads.kv_heads == 0 &&
         heads.heads / heads.kv_heads <= kMaxGroup;
}

// The limits are per process, so they are set for the largest group.
template <class K>
cudaError_t Prepare() {
  const cudaError_t error =
      cudaFuncSetAttribute(AttendPieces<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, K::SharedBytes(kMaxGroup));
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(AttendPieces<K>, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

template <int kDim>
cudaError_t PrepareBoth() {
  const cudaError_t error = Prepare<Kernel<kDim, false>>();
  return error != cudaSuccess ? error : Prepare<Kernel<kDim, true>>();
}

template <class K>
cudaError_t Launch(const StorageMaps& maps, const Call& call, int32_t blocks, cudaStream_t stream) {
  return model::LaunchChained(AttendPieces<K>, dim3(static_cast<unsigned>(blocks)), dim3(K::kThreads),
                              K::SharedBytes(call.group), stream, maps.keys, maps.values, call);
}

template <int kDim>
cudaError_t LaunchFor(const StorageMaps& maps, const Call& call, int32_t grid, Cuts cuts, cudaStream_t stream) {
  const int32_t blocks = AttentionBlocks(grid, cuts);
  return cuts == Cuts::kBetweenWindows ? Launch<Kernel<kDim, true>>(maps, call, blocks, stream)
                                       : Launch<Kernel<kDim, false>>(maps, call, blocks, stream);
}

}  // namespace

CUresult DescribeStorage(decltype(&::cuTensorMapEncodeTiled) encode, const BlockStorage& storage,
                         const HeadCounts& heads, StorageMaps* maps) {
  if (!Fits(heads)) return CUDA_ERROR_INVALID_VALUE;
  const cuuint64_t dim = static_cast<cuuint64_t>(heads.head_dim);
  // The copy engine's coordinates have 32 bits.
  if (storage.pieces * heads.kv_heads > std::numeric_limits<int32_t>::max()) return CUDA_ERROR_INVALID_VALUE;
  const cuuint64_t sizes[3] = {dim, kTokensPerBlock, static_cast<cuuint64_t>(storage.pieces) * heads.kv_heads};
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

int32_t AttentionBlocks(int32_t grid, Cuts cuts) {
  return cuts == Cuts::kBetweenWindows ? (grid + kBlocksPerMultiprocessor - 1) / kBlocksPerMultiprocessor : grid;
}

int32_t AttentionWindow(const HeadCounts& heads, Cuts cuts) {
  return cuts == Cuts::kBetweenWindows ? kJointSets * JointQueries(heads.head_dim) : 1;
}

cudaError_t PrepareAttention(const HeadCounts& heads) {
  if (!Fits(heads)) return cudaErrorInvalidValue;
  return heads.head_dim == 64 ? PrepareBoth<64>() : PrepareBoth<128>();
}

cudaError_t AttendPaged(const PagedRows& rows, const HeadCounts& heads, const StorageMaps& maps,
                        const BlockStorage& storage, int32_t layer, int32_t grid, const AttentionScratch& scratch,
                        const void* queries, void* out, RowsOf rows_of, Cuts cuts, cudaStream_t stream) {
  if (!Fits(heads) || layer < 0 || layer >= storage.layers) return cudaErrorInvalidValue;
  if (cuts == Cuts::kBetweenWindows && rows_of != RowsOf::kAnySequences) return cudaErrorInvalidValue;
  constexpr float kLog2E = 1.4426950408889634f;
  Call call;
  call.rows = rows;
  call.kv_heads = heads.kv_heads;
  call.group = heads.heads / heads.kv_heads;
  call.first_piece = static_cast<int>(layer * storage.layer_pieces);
  call.scale = kLog2E / std::sqrt(static_cast<float>(heads.head_dim));
  call.row_tiles = scratch.row_tiles;
  call.pieces = scratch.pieces;
  call.parts = scratch.parts;
  call.arrivals = scratch.arrivals;
  call.wait_first = rows_of == RowsOf::kAnySequences;
  call.queries = static_cast<const bf16*>(queries);
  call.out = static_cast<bf16*>(out);
  return heads.head_dim == 64 ? LaunchFor<64>(maps, call, grid, cuts, stream)
                              : LaunchFor<128>(maps, call, grid, cuts, stream);
}

}  // namespace syncopate::rollouter
