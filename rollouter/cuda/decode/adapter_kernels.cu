#include "rollouter/cuda/decode/adapter_kernels.h"

#include <algorithm>

#include "model/cuda/device_code.cuh"
#include "rollouter/cuda/decode/adapter_tile.cuh"

namespace syncopate::rollouter {
namespace {

using adapter_tile::kColumns;
using adapter_tile::kLaneRows;
using adapter_tile::kRows;
using adapter_tile::Outer;
using adapter_tile::Rows;
using model::bf16;
using model::kVector;
using model::Vector;

// The warps of a block have adjacent columns of the same rows. A warp keeps its columns and goes on to further rows, so
// that it reads B once.
constexpr int kWarps = 4, kThreads = kWarps * model::kWarp;
// Blocks that a multiprocessor runs at once, which bounds their registers, and the most it is given.
constexpr int kAddResident = 5, kMostAddBlocks = 132 * kAddResident;
constexpr int kActivateResident = 4, kMostActivateBlocks = 132 * 4 * kActivateResident;

__device__ __forceinline__ int GetWarp() {
  return static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / model::kWarp;
}

__global__ void __launch_bounds__(kThreads, kAddResident)
    Add(const __grid_constant__ AdaptedProduct product, const bf16* y, const bf16* added, bf16* out,
        int32_t out_stride) {
  const int stride = adapter_tile::GetStride(product), step = static_cast<int>(gridDim.y) * kRows;
  // The adapter of this warp's columns.
  int index = 0, column = GetWarp() * kColumns;
  for (; index < product.count; ++index) {
    const int columns = (product.adapters[index].outputs + kColumns - 1) / kColumns * kColumns;
    if (column < columns) break;
    column -= columns;
  }
  int first_row = static_cast<int>(blockIdx.y) * kRows;
  Rows rows = adapter_tile::ReadRows(product, first_row);
  Outer outer;
  if (index < product.count) adapter_tile::ReadFirstOuter(product, index, column, rows, outer);
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  if (index == product.count) return;
  const int begin = product.adapters[index].begin, outputs = product.adapters[index].outputs;
  while (first_row < product.rows) {
    Vector base[kLaneRows], more[kLaneRows], inner[kLaneRows];
    adapter_tile::ReadColumns(product, y + begin, stride, rows, column, outputs, base);
    adapter_tile::ReadInner(product, index, y, rows, /*depth=*/0, inner);
    if (added != nullptr) {
      adapter_tile::ReadColumns(product, added + begin, out_stride, rows, column, outputs, more);
    }
    float values[kLaneRows][kVector];
    adapter_tile::Add(product, index, y, rows, column, base, inner, outer, values);
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      if (rows.at[i] >= product.rows || column + adapter_tile::GetElement() >= outputs) continue;
      if (added != nullptr) {
        float others[kVector];
        model::Widen(more[i], others);
#pragma unroll
        for (int j = 0; j < kVector; ++j) values[i][j] += others[j];
      }
      adapter_tile::Write(
          out + static_cast<int64_t>(rows.at[i]) * out_stride + begin + column + adapter_tile::GetElement(), values[i]);
    }
    first_row += step;
    rows = adapter_tile::ReadRows(product, first_row);
  }
}

// The adapter of the half of a product that begins at column `begin`; -1: none.
__device__ __forceinline__ int FindAdapter(const AdaptedProduct& product, int begin) {
  for (int index = 0; index < product.count; ++index) {
    if (product.adapters[index].begin == begin) return index;
  }
  return -1;
}

__global__ void __launch_bounds__(kThreads, kActivateResident)
    Activate(const __grid_constant__ AdaptedProduct product, int32_t width, const bf16* y, bf16* activated) {
  const int stride = adapter_tile::GetStride(product), step = static_cast<int>(gridDim.y) * kRows;
  const int column = GetWarp() * kColumns;
  const int gate_adapter = FindAdapter(product, 0), up_adapter = FindAdapter(product, width);
  int first_row = static_cast<int>(blockIdx.y) * kRows;
  Rows rows = adapter_tile::ReadRows(product, first_row);
  Outer of_gate, of_up;
  if (column < width) {
    adapter_tile::ReadFirstOuter(product, gate_adapter, column, rows, of_gate);
    adapter_tile::ReadFirstOuter(product, up_adapter, column, rows, of_up);
  }
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  if (column >= width) return;
  while (first_row < product.rows) {
    Vector gates[kLaneRows], ups[kLaneRows], gate_inner[kLaneRows], up_inner[kLaneRows];
    adapter_tile::ReadColumns(product, y, stride, rows, column, width, gates);
    adapter_tile::ReadColumns(product, y + width, stride, rows, column, width, ups);
    adapter_tile::ReadInner(product, gate_adapter, y, rows, /*depth=*/0, gate_inner);
    adapter_tile::ReadInner(product, up_adapter, y, rows, /*depth=*/0, up_inner);
    float gate[kLaneRows][kVector], up[kLaneRows][kVector];
    adapter_tile::Add(product, gate_adapter, y, rows, column, gates, gate_inner, of_gate, gate);
    adapter_tile::Add(product, up_adapter, y, rows, column, ups, up_inner, of_up, up);
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      if (rows.at[i] >= product.rows || column + adapter_tile::GetElement() >= width) continue;
      model::Widen(model::Narrow(gate[i]), gate[i]);
      model::Widen(model::Narrow(up[i]), up[i]);
#pragma unroll
      for (int j = 0; j < kVector; ++j) gate[i][j] = __fdividef(gate[i][j], 1.0f + __expf(-gate[i][j]));
      model::Widen(model::Narrow(gate[i]), gate[i]);
#pragma unroll
      for (int j = 0; j < kVector; ++j) gate[i][j] *= up[i][j];
      adapter_tile::Write(activated + static_cast<int64_t>(rows.at[i]) * width + column + adapter_tile::GetElement(),
                          gate[i]);
    }
    first_row += step;
    rows = adapter_tile::ReadRows(product, first_row);
  }
}

int32_t CountTiles(int32_t extent, int32_t tile) { return (extent + tile - 1) / tile; }

dim3 GetGrid(int32_t rows, int32_t column_tiles, int32_t most_blocks) {
  const int32_t across = CountTiles(column_tiles, kWarps);
  const int32_t down = std::min(CountTiles(rows, kRows), std::max(most_blocks / across, 1));
  return dim3(static_cast<unsigned>(across), static_cast<unsigned>(down));
}

}  // namespace

bool AdaptedProduct::Fits() const {
  bool fits = rows > 0 && count > 0 && count <= kMostAdapters && rank > 0 && rank % kVector == 0 &&
              columns % kVector == 0 && sets != nullptr;
  for (int32_t i = 0; fits && i < count; ++i) {
    fits = adapters[i].outputs > 0 && adapters[i].outputs % kVector == 0 && adapters[i].begin % kVector == 0;
  }
  return fits;
}

cudaError_t AddAdapters(const AdaptedProduct& product, const void* y, const void* added, void* out, int32_t out_stride,
                        cudaStream_t stream) {
  if (!product.Fits() || out_stride % kVector != 0 || out == y) return cudaErrorInvalidValue;
  int32_t tiles = 0;
  for (int32_t i = 0; i < product.count; ++i) tiles += CountTiles(product.adapters[i].outputs, kColumns);
  return model::LaunchChained(Add, GetGrid(product.rows, tiles, kMostAddBlocks), dim3(kThreads), 0, stream, product,
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
  if (!product.Fits() || !halves) return cudaErrorInvalidValue;
  return model::LaunchChained(Activate, GetGrid(product.rows, CountTiles(width, kColumns), kMostActivateBlocks),
                              dim3(kThreads), 0, stream, product, width, static_cast<const bf16*>(y),
                              static_cast<bf16*>(activated));
}

}  // namespace syncopate::rollouter
