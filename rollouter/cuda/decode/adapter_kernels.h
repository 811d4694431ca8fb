#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// What the adapters of a matrix product add to its result. The product's weights have the A of one or two adapter sets
// as further rows, each in its place, so that it makes x a^T beside y = x w^T; these kernels, and RotateAndAppend
// (paged_cache.h), multiply that with B by the tensor cores. A result depends on the row's own numbers and adapter set
// alone, to the last bit: sets of other rows contribute exact zeros. Sets and B are read while the kernel before on the
// stream may still run, so they must have been written before that one began. Launches queue the work, return, and are
// chained (model/cuda/device_code.cuh). No libtorch.
namespace syncopate::rollouter {

constexpr int32_t kMostAdapters = 3;        // of one product: those of q, k and v
constexpr int32_t kDecodedAdapterSets = 3;  // model::kAdapterSets, in a header that nvcc compiles
constexpr int32_t kAdapterPlaces = 2;       // model::kAdapterPlaces; place 0 is the live set's

// What a row says of its adapters: the set whose B they are, and the place of that set's A. The rows of a pass have at most
// one place for each set. Below 0: the row has no adapter.
constexpr int32_t kRowSets = 4;
constexpr int32_t MakeRowSet(int32_t set, int32_t place) { return set < 0 ? -1 : place * kRowSets + set; }
constexpr int32_t GetRowPlace(int32_t row_set) { return row_set < 0 ? 0 : row_set / kRowSets; }

// The adapter of columns [begin, begin + outputs) of a product.
struct AdapterColumns {
  int32_t begin = 0;
  int32_t outputs = 0;                      // a multiple of 8
  const void* a[kDecodedAdapterSets] = {};  // [rank, inputs], by set; the kernels do not read it
  const void* b[kDecodedAdapterSets] = {};  // [outputs, rank], by set
};

// Elements from row to row of such a product: whole lines of memory, so that vectors of a row are in lines as its first is.
constexpr int32_t GetRowStride(int32_t columns) { return (columns + 63) / 64 * 64; }

// A product y [rows, stride] in bf16: `columns` of the base, then for each place x a^T of each adapter in order, `rank`
// numbers each.
struct AdaptedProduct {
  int32_t rows = 0;
  int32_t columns = 0;
  int32_t rank = 0;  // a multiple of 8
  float scale = 1;
  int32_t count = 0;
  int32_t places = kAdapterPlaces;  // 1: no row is of another place than 0
  AdapterColumns adapters[kMostAdapters] = {};
  const int32_t* sets = nullptr;  // [rows], device memory: see MakeRowSet

  constexpr int32_t stride() const { return GetRowStride(columns + places * count * rank); }
  // Whether the numbers are as said here.
  bool Fits() const;
};

// out[row][c] = y[row][c] + scale * (x a^T)[row] b^T[c] + added[row][c] for the columns that have an adapter. `out` may
// be `added`, but not y. `out_stride`: elements from row to row of `out` and `added`; `added` may be nullptr.
cudaError_t AddAdapters(const AdaptedProduct& product, const void* y, const void* added, void* out, int32_t out_stride,
                        cudaStream_t stream);

// Does what model::SwiGlu does, of a product of 2 `width` columns whose adapters are those of the first half, of the second half,
// or both: activated[row] = silu(gate) * up, where gate and up are rounded to bf16 with what their adapters add.
cudaError_t AddAdaptersAndSwiGlu(const AdaptedProduct& product, int32_t width, const void* y, void* activated,
                                 cudaStream_t stream);

// Copies between addresses of device memory that are multiples of 16, as is the number of bytes.
struct AdapterCopy {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t bytes = 0;
};
// Makes `count` copies after all earlier work of the stream. The device reads `copies`; no memory is the target of two of
// them, or target and source.
cudaError_t CopyAdapters(const AdapterCopy* copies, int32_t count, cudaStream_t stream);

}  // namespace syncopate::rollouter
