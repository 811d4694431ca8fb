#include <mma.h>

#include "model/cuda/device_code.cuh"
#include "rollouter/cuda/decode/adapter_kernels.h"

namespace syncopate::rollouter {
namespace {

using model::bf16;
using model::kVector;
using model::Vector;
namespace wmma = nvcuda::wmma;

// A block computes a tile of rows and columns; each of its warps has 16 of the rows.
constexpr int kTileRows = 64, kTileColumns = 64;
constexpr int kThreads = kTileRows / 16 * model::kWarp;
constexpr int kFragments = kTileColumns / 16;
constexpr int kSumStride = kTileColumns + 4;
constexpr int kVectorsARow = kTileColumns / kVector;
constexpr int kVectorsAThread = kTileRows * kVectorsARow / kThreads;

using Sums = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

// `kDepth`: the part of the rank that is multiplied at once.
template <int kDepth>
struct alignas(128) Tile {
  static constexpr int kStride = kDepth + kVector;
  bf16 inner[kTileRows][kStride];     // x a^T of the rows of one set, zeros for other rows
  bf16 outer[kTileColumns][kStride];  // b of that set
  float sums[kTileRows][kSumStride];
  int32_t sets[kTileRows];
  unsigned present;  // a bit for each set that a row has
};

__device__ __forceinline__ int GetStride(const AdaptedProduct& product) {
  return product.columns + kDecodedAdapterSets * product.count * product.rank;
}

// Reads the rows' sets. All threads of the block must call it.
template <int kDepth>
__device__ __forceinline__ void ReadSets(const AdaptedProduct& product, int first_row, Tile<kDepth>& tile) {
  if (threadIdx.x == 0) tile.present = 0;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows; i += kThreads) {
    const int set = first_row + i < product.rows ? product.sets[first_row + i] : -1;
    tile.sets[i] = set;
    if (set >= 0) atomicOr(&tile.present, 1u << set);
  }
  __syncthreads();
}

// sums += x a^T b^T for this warp's rows and columns [column, column + kTileColumns) of the adapter, whose x a^T of set
// 0 begins at column `inner` of y. All threads of the block must call it.
template <int kDepth>
__device__ __forceinline__ void Multiply(const AdaptedProduct& product, const AdapterColumns& adapter, int inner,
                                         int first_row, int column, const bf16* y, Tile<kDepth>& tile, Sums* sums) {
  const int stride = GetStride(product), warp = static_cast<int>(threadIdx.x) / model::kWarp;
  constexpr int kVectors = kDepth / kVector, kStride = Tile<kDepth>::kStride;
  for (int set = 0; set < kDecodedAdapterSets; ++set) {
    if ((tile.present >> set & 1u) == 0) continue;
    const bf16* b = static_cast<const bf16*>(adapter.b[set]);
    for (int depth = 0; depth < product.rank; depth += kDepth) {
      __syncthreads();  // the tiles of the part before have been read
      for (int at = static_cast<int>(threadIdx.x); at < kTileRows * kVectors; at += kThreads) {
        const int row = at / kVectors, element = at % kVectors * kVector;
        Vector vector = {};
        if (tile.sets[row] == set && depth + element < product.rank) {
          vector = *reinterpret_cast<const Vector*>(y + static_cast<int64_t>(first_row + row) * stride + inner +
                                                    set * product.count * product.rank + depth + element);
        }
        *reinterpret_cast<Vector*>(&tile.inner[row][element]) = vector;
      }
      for (int at = static_cast<int>(threadIdx.x); at < kTileColumns * kVectors; at += kThreads) {
        const int row = at / kVectors, element = at % kVectors * kVector;
        Vector vector = {};
        if (column + row < adapter.outputs && depth + element < product.rank) {
          vector =
              *reinterpret_cast<const Vector*>(b + static_cast<int64_t>(column + row) * product.rank + depth + element);
        }
        *reinterpret_cast<Vector*>(&tile.outer[row][element]) = vector;
      }
      __syncthreads();
      for (int k = 0; k < kDepth && depth + k < product.rank; k += 16) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> left;
        wmma::load_matrix_sync(left, &tile.inner[warp * 16][k], kStride);
#pragma unroll
        for (int n = 0; n < kFragments; ++n) {
          wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::col_major> right;
          wmma::load_matrix_sync(right, &tile.outer[n * 16][k], kStride);
          wmma::mma_sync(sums[n], left, right, sums[n]);
        }
      }
    }
  }
}

__device__ __forceinline__ void Clear(Sums* sums) {
#pragma unroll
  for (int n = 0; n < kFragments; ++n) wmma::fill_fragment(sums[n], 0.0f);
}

// Puts this warp's sums where all threads can read them. All threads of the block must call it.
template <int kDepth>
__device__ __forceinline__ void Share(const Sums* sums, Tile<kDepth>& tile) {
  __syncthreads();  // earlier sums have been read
  const int warp = static_cast<int>(threadIdx.x) / model::kWarp;
#pragma unroll
  for (int n = 0; n < kFragments; ++n) {
    wmma::store_matrix_sync(&tile.sums[warp * 16][n * 16], sums[n], kSumStride, wmma::mem_row_major);
  }
  __syncthreads();
}

// The place in the tile of the n-th vector of this thread.
struct Place {
  int row = 0;
  int element = 0;
};
__device__ __forceinline__ Place GetPlace(int n) {
  const int at = static_cast<int>(threadIdx.x) + n * kThreads;
  return {at / kVectorsARow, at % kVectorsARow * kVector};
}

// This thread's vectors of columns [column, column + kTileColumns) of y, as far as there are `columns` of them. They are
// asked for before the product is made, so that they arrive meanwhile.
__device__ __forceinline__ void Read(const bf16* from, int stride, int rows, int first_row, int column, int columns,
                                     Vector* vectors) {
#pragma unroll
  for (int n = 0; n < kVectorsAThread; ++n) {
    const Place place = GetPlace(n);
    if (first_row + place.row >= rows || column + place.element >= columns) continue;
    vectors[n] = *reinterpret_cast<const Vector*>(from + static_cast<int64_t>(first_row + place.row) * stride + column +
                                                  place.element);
  }
}

template <int kDepth>
__global__ void __launch_bounds__(kThreads)
    Add(AdaptedProduct product, const bf16* y, const bf16* added, bf16* out, int32_t out_stride) {
  __shared__ Tile<kDepth> tile;
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  const int first_row = static_cast<int>(blockIdx.x) * kTileRows;
  // The adapter of this block's columns.
  int index = 0, column = static_cast<int>(blockIdx.y) * kTileColumns;
  for (; index + 1 < product.count; ++index) {
    const int columns = (product.adapters[index].outputs + kTileColumns - 1) / kTileColumns * kTileColumns;
    if (column < columns) break;
    column -= columns;
  }
  const AdapterColumns& adapter = product.adapters[index];
  Vector of_base[kVectorsAThread], more[kVectorsAThread];
  Read(y + adapter.begin, GetStride(product), product.rows, first_row, column, adapter.outputs, of_base);
  if (added != nullptr) Read(added + adapter.begin, out_stride, product.rows, first_row, column, adapter.outputs, more);
  ReadSets(product, first_row, tile);
  if (tile.present == 0 && out == y) return;
  Sums sums[kFragments];
  Clear(sums);
  Multiply(product, adapter, product.columns + index * product.rank, first_row, column, y, tile, sums);
  Share(sums, tile);
#pragma unroll
  for (int n = 0; n < kVectorsAThread; ++n) {
    const Place place = GetPlace(n);
    if (first_row + place.row >= product.rows || column + place.element >= adapter.outputs) continue;
    float values[kVector];
    model::Widen(of_base[n], values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] += product.scale * tile.sums[place.row][place.element + i];
    if (added != nullptr) {
      float others[kVector];
      model::Widen(more[n], others);
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] += others[i];
    }
    model::Store(
        out + static_cast<int64_t>(first_row + place.row) * out_stride + adapter.begin + column + place.element,
        values);
  }
}

// Adds what the adapter of the half of y that begins at `half` adds to this thread's vectors of it, and rounds. All
// threads of the block must call it.
template <int kDepth>
__device__ __forceinline__ void AddToHalf(const AdaptedProduct& product, int half, int first_row, int column,
                                          const bf16* y, Tile<kDepth>& tile, const Vector* of_base,
                                          float (*values)[kVector]) {
  Sums sums[kFragments];
  Clear(sums);
  for (int index = 0; index < product.count; ++index) {
    if (product.adapters[index].begin != half) continue;
    Multiply(product, product.adapters[index], product.columns + index * product.rank, first_row, column, y, tile,
             sums);
  }
  Share(sums, tile);
#pragma unroll
  for (int n = 0; n < kVectorsAThread; ++n) {
    const Place place = GetPlace(n);
    model::Widen(of_base[n], values[n]);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      values[n][i] = model::Round(values[n][i] + product.scale * tile.sums[place.row][place.element + i]);
    }
  }
}

template <int kDepth>
__global__ void __launch_bounds__(kThreads)
    Activate(AdaptedProduct product, int32_t width, const bf16* y, bf16* activated) {
  __shared__ Tile<kDepth> tile;
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  const int first_row = static_cast<int>(blockIdx.x) * kTileRows, column = static_cast<int>(blockIdx.y) * kTileColumns;
  Vector of_gate[kVectorsAThread] = {}, of_up[kVectorsAThread] = {};
  Read(y, GetStride(product), product.rows, first_row, column, width, of_gate);
  Read(y + width, GetStride(product), product.rows, first_row, column, width, of_up);
  ReadSets(product, first_row, tile);
  float gate[kVectorsAThread][kVector], up[kVectorsAThread][kVector];
  AddToHalf(product, 0, first_row, column, y, tile, of_gate, gate);
  AddToHalf(product, width, first_row, column, y, tile, of_up, up);
#pragma unroll
  for (int n = 0; n < kVectorsAThread; ++n) {
    const Place place = GetPlace(n);
    if (first_row + place.row >= product.rows || column + place.element >= width) continue;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      gate[n][i] = model::Round(__fdividef(gate[n][i], 1.0f + __expf(-gate[n][i]))) * up[n][i];
    }
    model::Store(activated + static_cast<int64_t>(first_row + place.row) * width + column + place.element, gate[n]);
  }
}

unsigned CountTiles(int32_t extent, int tile) { return static_cast<unsigned>((extent + tile - 1) / tile); }

bool Fits(const AdaptedProduct& product) {
  bool fits = product.rows > 0 && product.count > 0 && product.count <= kMostAdapters && product.rank > 0 &&
              product.rank % kVector == 0 && product.columns % kVector == 0 && product.sets != nullptr;
  for (int32_t i = 0; fits && i < product.count; ++i) {
    fits = product.adapters[i].outputs > 0 && product.adapters[i].outputs % kVector == 0 &&
           product.adapters[i].begin % kVector == 0;
  }
  return fits;
}

}  // namespace

cudaError_t AddAdapters(const AdaptedProduct& product, const void* y, const void* added, void* out, int32_t out_stride,
                        cudaStream_t stream) {
  if (!Fits(product) || out_stride % kVector != 0) return cudaErrorInvalidValue;
  unsigned columns = 0;
  for (int32_t i = 0; i < product.count; ++i) columns += CountTiles(product.adapters[i].outputs, kTileColumns);
  return model::LaunchChained(product.rank <= 32 ? Add<32> : Add<64>,
                              dim3(CountTiles(product.rows, kTileRows), columns), dim3(kThreads), 0, stream, product,
                              static_cast<const bf16*>(y), static_cast<const bf16*>(added), static_cast<bf16*>(out),
                              out_stride);
}

cudaError_t AddAdaptersAndSwiGlu(const AdaptedProduct& product, int32_t width, const void* y, void* activated,
                                 cudaStream_t stream) {
  bool halves = width > 0 && width % kVector == 0 && product.columns == 2 * width;
  for (int32_t i = 0; halves && i < product.count; ++i) {
    const AdapterColumns& adapter = product.adapters[i];
    halves = adapter.outputs == width && (adapter.begin == 0 || adapter.begin == width);
  }
  if (!Fits(product) || !halves) return cudaErrorInvalidValue;
  return model::LaunchChained(product.rank <= 32 ? Activate<32> : Activate<64>,
                              dim3(CountTiles(product.rows, kTileRows), CountTiles(width, kTileColumns)),
                              dim3(kThreads), 0, stream, product, width, static_cast<const bf16*>(y),
                              static_cast<bf16*>(activated));
}

}  // namespace syncopate::rollouter
