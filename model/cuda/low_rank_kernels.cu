#include <algorithm>

#include "model/cuda/device_code.cuh"
#include "model/cuda/train_kernels.h"
#include "model/cuda/typed_rows.cuh"

// SwiGLU and its gradient with what adapters add to their inputs. A warp multiplies tiles of 16 rows and 32 columns by
// mma.sync (bfloat16, sums in float32). It keeps its columns, and their part of each term's `outer` in registers, and
// goes on to further rows. Columns and elements of the rank are permuted so that each lane accesses 16 bytes at once:
// lane l has rows l / 4 and l / 4 + 8 of a tile, and of each its columns from 8 * (l % 4) on.
namespace syncopate::model::kernels {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kTileRows = 16, kTileColumns = 32;
constexpr int kLaneRows = 2, kLaneColumns = 8;
constexpr int kPart = 32;  // elements of the rank that are multiplied at once
constexpr int kWarps = 4, kThreads = kWarps * kWarp;
// Blocks that a multiprocessor runs at once, which bounds their registers; waves of them that a launch has.
constexpr int kForwardResident = 3, kBackwardResident = 3, kWaves = 4;

struct alignas(16) Bits {
  unsigned pairs[4];  // 8 numbers
};

__device__ __forceinline__ int GetLane() { return static_cast<int>(threadIdx.x) % kWarp; }
// The first of this lane's columns in a tile, and of its elements of the rank in a part.
__device__ __forceinline__ int GetElement() { return GetLane() % 4 * kLaneColumns; }

// Zeros unless `reads`.
__device__ __forceinline__ Bits ReadIf(bool reads, const bf16* from) {
  uint4 bits = {};
  if (reads) bits = *reinterpret_cast<const uint4*>(from);
  return {{bits.x, bits.y, bits.z, bits.w}};
}

// A term's `outer` for the tile's columns and kPart elements of the rank.
struct Outer {
  Bits columns[kTileColumns / 8];
};

__device__ __forceinline__ void ReadOuter(const LowRank& term, int column, int width, int part, Outer& outer) {
  const int element = part + GetElement(), lane = GetLane();
#pragma unroll
  for (int n = 0; n < kTileColumns / 8; ++n) {
    const int output = column + lane / 8 * 8 + 2 * n + lane / 4 % 2;
    outer.columns[n] =
        ReadIf(output < width && element < term.rank,
               static_cast<const bf16*>(term.outer) + static_cast<int64_t>(output) * term.rank + element);
  }
}

// sums += left right^T for the n-th two columns of each eight.
__device__ __forceinline__ void Multiply(const Bits* left, const Bits& right, int n, float (*sums)[kLaneColumns]) {
#pragma unroll
  for (int k = 0; k < 4; k += 2) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0][2 * n]), "+f"(sums[0][2 * n + 1]), "+f"(sums[1][2 * n]), "+f"(sums[1][2 * n + 1])
        : "r"(left[0].pairs[k]), "r"(left[1].pairs[k]), "r"(left[0].pairs[k + 1]), "r"(left[1].pairs[k + 1]),
          "r"(right.pairs[k]), "r"(right.pairs[k + 1]));
  }
}

__device__ __forceinline__ int GetRow(int first_row, int i) { return first_row + GetLane() / 4 + i * kTileRows / 2; }

// The lane's elements from `part` on of a term's `inner`.
__device__ __forceinline__ void ReadInner(const LowRank& term, int first_row, int rows, int part, Bits* left) {
  const int element = part + GetElement();
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    const int row = GetRow(first_row, i);
    left[i] = ReadIf(row < rows && element < term.rank,
                     static_cast<const bf16*>(term.inner) + row * term.inner_stride + element);
  }
}

__device__ __forceinline__ void MultiplyPart(const Bits* left, const Outer& outer, float (*sums)[kLaneColumns]) {
#pragma unroll
  for (int n = 0; n < kTileColumns / 8; ++n) Multiply(left, outer.columns[n], n, sums);
}

__device__ __forceinline__ void Widen(const Bits& bits, float* values) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(bits.pairs[i] << 16);
    values[2 * i + 1] = __uint_as_float(bits.pairs[i] & 0xffff0000u);
  }
}

// Rounded.
__device__ __forceinline__ Bits Narrow(const float* values) {
  Bits bits;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
    bits.pairs[i] = *reinterpret_cast<const unsigned*>(&pair);
  }
  return bits;
}

__device__ __forceinline__ void Round(float* values) { Widen(Narrow(values), values); }

__device__ __forceinline__ void WriteIf(bool writes, bf16* to, const Bits& bits) {
  if (writes) *reinterpret_cast<uint4*>(to) = make_uint4(bits.pairs[0], bits.pairs[1], bits.pairs[2], bits.pairs[3]);
}

// total = `bits`, the lane's parts of its rows, plus a term's `sums`, rounded.
__device__ __forceinline__ void AddTerm(const Bits* bits, float scale, const float (*sums)[kLaneColumns], Bits* total) {
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    float values[kLaneColumns];
    Widen(bits[i], values);
#pragma unroll
    for (int j = 0; j < kLaneColumns; ++j) values[j] += scale * sums[i][j];
    total[i] = Narrow(values);
  }
}

// What a term adds to the warp's columns.
template <bool kOnePart>
class Term {
 public:
  __device__ __forceinline__ Term(const LowRank& term, int column, int width)
      : term_(term), column_(column), width_(width) {
    if (kOnePart) ReadOuter(term, column, width, 0, outer_);
  }

  // AddTerm() of this term. All lanes of the warp must call it.
  __device__ __forceinline__ void AddTo(const Bits* bits, int first_row, int rows, Bits* total) {
    float sums[kLaneRows][kLaneColumns] = {};
    Bits left[kLaneRows];
    if (kOnePart) {
      ReadInner(term_, first_row, rows, 0, left);
      MultiplyPart(left, outer_, sums);
    } else {
      for (int part = 0; part < term_.rank; part += kPart) {
        ReadOuter(term_, column_, width_, part, outer_);
        ReadInner(term_, first_row, rows, part, left);
        MultiplyPart(left, outer_, sums);
      }
    }
    AddTerm(bits, term_.scale, sums, total);
  }

 private:
  const LowRank& term_;
  const int column_, width_;
  Outer outer_;
};

// The lane's parts of the tile's rows, which are `stride` elements apart.
__device__ __forceinline__ void ReadRows(const bf16* from, int64_t stride, int first_row, int rows, bool mine,
                                         Bits* bits) {
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    const int row = GetRow(first_row, i);
    bits[i] = ReadIf(mine && row < rows, from + row * stride);
  }
}

// Uses __fdividef, as an exact division has a branch: few warps are resident, and a lane computes its eight numbers
// side by side.
__device__ __forceinline__ float Sigmoid(float x) { return __fdividef(1.f, 1.f + __expf(-x)); }

__device__ __forceinline__ int GetColumn() {
  return (static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp) * kTileColumns;
}

template <bool kOnePart>
__global__ void __launch_bounds__(kThreads, kForwardResident)
    ForwardKernel(const __grid_constant__ LowRank of_gate, const __grid_constant__ LowRank of_up, const bf16* gate_up,
                  int rows, int width, bf16* y) {
  const int column = GetColumn(), mine = column + GetElement();
  if (column >= width) return;
  const bool has = mine < width;
  Term<kOnePart> gate_term(of_gate, column, width), up_term(of_up, column, width);
  const int step = static_cast<int>(gridDim.y) * kTileRows;
  int first = static_cast<int>(blockIdx.y) * kTileRows;
  Bits gates[kLaneRows], ups[kLaneRows];
  auto read = [&](int row) {
    ReadRows(gate_up + mine, 2 * width, row, rows, has, gates);
    ReadRows(gate_up + width + mine, 2 * width, row, rows, has, ups);
  };
  read(first);
  for (; first < rows; first += step) {
    Bits gate_sums[kLaneRows], up_sums[kLaneRows];
    gate_term.AddTo(gates, first, rows, gate_sums);
    up_term.AddTo(ups, first, rows, up_sums);
    read(first + step);
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      float gate[kLaneColumns], up[kLaneColumns];
      Widen(gate_sums[i], gate);
      Widen(up_sums[i], up);
#pragma unroll
      for (int j = 0; j < kLaneColumns; ++j) gate[j] *= Sigmoid(gate[j]);
      Round(gate);
#pragma unroll
      for (int j = 0; j < kLaneColumns; ++j) up[j] *= gate[j];
      const int row = GetRow(first, i);
      WriteIf(has && row < rows, y + static_cast<int64_t>(row) * width + mine, Narrow(up));
    }
  }
}

// A lane's part of a row of SwiGLU's gradients, and of its output.
struct Differentiated {
  Bits dgate, dup, y;
};

__device__ __forceinline__ Differentiated Differentiate(const Bits& of_y, const Bits& of_gate, const Bits& of_up) {
  Differentiated made;
  float gradient[kLaneColumns], gate[kLaneColumns], up[kLaneColumns];
  Widen(of_y, gradient);
  Widen(of_gate, gate);
  Widen(of_up, up);
  float silu[kLaneColumns], values[kLaneColumns];
#pragma unroll
  for (int j = 0; j < kLaneColumns; ++j) {
    const float sigmoid = Sigmoid(gate[j]);
    silu[j] = gate[j] * sigmoid;
    values[j] = gradient[j] * up[j] * sigmoid * (1.f + gate[j] * (1.f - sigmoid));
  }
  made.dgate = Narrow(values);
#pragma unroll
  for (int j = 0; j < kLaneColumns; ++j) values[j] = gradient[j] * silu[j];
  made.dup = Narrow(values);
  Round(silu);
#pragma unroll
  for (int j = 0; j < kLaneColumns; ++j) values[j] = silu[j] * up[j];
  made.y = Narrow(values);
  return made;
}

// dgate_up may be gate_up: a lane has read its numbers of a tile before it writes them, and reads no others.
template <bool kOnePart>
__global__ void __launch_bounds__(kThreads, kBackwardResident)
    BackwardKernel(const __grid_constant__ LowRank of_dy, const __grid_constant__ LowRank of_gate,
                   const __grid_constant__ LowRank of_up, const bf16* dy, const bf16* gate_up, int rows, int width,
                   bf16* dgate_up, bf16* y) {
  const int column = GetColumn(), mine = column + GetElement();
  if (column >= width) return;
  const bool has = mine < width;
  Term<kOnePart> dy_term(of_dy, column, width), gate_term(of_gate, column, width), up_term(of_up, column, width);
  const int step = static_cast<int>(gridDim.y) * kTileRows;
  int first = static_cast<int>(blockIdx.y) * kTileRows;
  Bits gradients[kLaneRows], gates[kLaneRows], ups[kLaneRows];
  auto read = [&](int row) {
    ReadRows(dy + mine, width, row, rows, has, gradients);
    ReadRows(gate_up + mine, 2 * width, row, rows, has, gates);
    ReadRows(gate_up + width + mine, 2 * width, row, rows, has, ups);
  };
  read(first);
  for (; first < rows; first += step) {
    Bits gradient[kLaneRows], gate[kLaneRows], up[kLaneRows];
    gate_term.AddTo(gates, first, rows, gate);
    up_term.AddTo(ups, first, rows, up);
    dy_term.AddTo(gradients, first, rows, gradient);
    read(first + step);
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      const int row = GetRow(first, i);
      const bool writes = has && row < rows;
      bf16* const to = dgate_up + static_cast<int64_t>(row) * 2 * width + mine;
      const Differentiated made = Differentiate(gradient[i], gate[i], up[i]);
      WriteIf(writes, to, made.dgate);
      WriteIf(writes, to + width, made.dup);
      WriteIf(writes && y != nullptr, y + static_cast<int64_t>(row) * width + mine, made.y);
    }
  }
}

// -- The backward kernel that also makes the gradients of the adapters' matrices, [rank, width] or [width, rank], for
// ranks up to kPart: sums over rows of `inner` times a gradient, or times y, which then need not be in memory. A warp keeps its
// columns' sums over its rows in registers; another kernel adds those of all warps, in a fixed order.

constexpr int kTerms = 3;  // of gate, of up, of dy
constexpr int kGradientResident = 2, kGradientWaves = 3;

// The transposed 8 x 8 matrix of which lane l has elements 2 * (l % 4) and the next of row l / 4.
__device__ __forceinline__ unsigned Transpose(unsigned pair) {
  unsigned transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

// Sums of left^T right over rows: kPart elements of the rank by the warp's columns.
struct Sums {
  float values[kPart / 16][kTileColumns / 8][4] = {};

  __device__ __forceinline__ void Add(const Bits* left, const Bits& right0, const Bits& right1) {
    unsigned b0[kTileColumns / 8], b1[kTileColumns / 8];
#pragma unroll
    for (int n = 0; n < kTileColumns / 8; ++n) b0[n] = Transpose(right0.pairs[n]), b1[n] = Transpose(right1.pairs[n]);
#pragma unroll
    for (int half = 0; half < kPart / 16; ++half) {
      const unsigned a0 = Transpose(left[0].pairs[2 * half]), a1 = Transpose(left[0].pairs[2 * half + 1]);
      const unsigned a2 = Transpose(left[1].pairs[2 * half]), a3 = Transpose(left[1].pairs[2 * half + 1]);
#pragma unroll
      for (int n = 0; n < kTileColumns / 8; ++n) {
        float* sum = values[half][n];
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0[n]), "r"(b1[n]));
      }
    }
  }

  // to [kPart, width], from the warp's lane's first column on.
  __device__ __forceinline__ void Write(float* to, int width) const {
#pragma unroll
    for (int half = 0; half < kPart / 16; ++half) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        const int lane = GetLane(), element = lane / 8 * 8 + 2 * (2 * half + second) + lane / 4 % 2;
        auto* const row = reinterpret_cast<float4*>(to + static_cast<int64_t>(element) * width);
#pragma unroll
        for (int n = 0; n < kTileColumns / 8; n += 2) {
          const float *one = values[half][n] + 2 * second, *next = values[half][n + 1] + 2 * second;
          row[n / 2] = make_float4(one[0], one[1], next[0], next[1]);
        }
      }
    }
  }
};

// partial [gridDim.y, kTerms, kPart, width].
__global__ void __launch_bounds__(kThreads, kGradientResident)
    BackwardWithGradientsKernel(const __grid_constant__ LowRank of_dy, const __grid_constant__ LowRank of_gate,
                                const __grid_constant__ LowRank of_up, const bf16* dy, const bf16* gate_up, int rows,
                                int width, bf16* dgate_up, float* partial) {
  // Each lane reads here what it has written: registers are for the sums.
  __shared__ Bits outers[kTerms][kTileColumns / 8][kThreads];
  const int column = GetColumn(), mine = column + GetElement();
  if (column >= width) return;
  const bool has = mine < width;
#pragma unroll
  for (int t = 0; t < kTerms; ++t) {
    Outer outer;
    ReadOuter(t == 0 ? of_gate : t == 1 ? of_up : of_dy, column, width, 0, outer);
#pragma unroll
    for (int n = 0; n < kTileColumns / 8; ++n) outers[t][n][threadIdx.x] = outer.columns[n];
  }
  auto add = [&](int t, float scale, const Bits* left, const Bits* bits, Bits* total) {
    float sums[kLaneRows][kLaneColumns] = {};
#pragma unroll
    for (int n = 0; n < kTileColumns / 8; ++n) Multiply(left, outers[t][n][threadIdx.x], n, sums);
    AddTerm(bits, scale, sums, total);
  };
  const int step = static_cast<int>(gridDim.y) * kTileRows;
  int first = static_cast<int>(blockIdx.y) * kTileRows;
  Bits gradients[kLaneRows], gates[kLaneRows], ups[kLaneRows];
  auto read = [&](int row) {
    ReadRows(dy + mine, width, row, rows, has, gradients);
    ReadRows(gate_up + mine, 2 * width, row, rows, has, gates);
    ReadRows(gate_up + width + mine, 2 * width, row, rows, has, ups);
  };
  Sums of_gates, of_ups, of_outputs;
  read(first);
  for (; first < rows; first += step) {
    Bits gate_inner[kLaneRows], up_inner[kLaneRows], dy_inner[kLaneRows];
    ReadInner(of_gate, first, rows, 0, gate_inner);
    ReadInner(of_up, first, rows, 0, up_inner);
    ReadInner(of_dy, first, rows, 0, dy_inner);
    Bits gradient[kLaneRows], gate[kLaneRows], up[kLaneRows];
    add(0, of_gate.scale, gate_inner, gates, gate);
    add(1, of_up.scale, up_inner, ups, up);
    add(2, of_dy.scale, dy_inner, gradients, gradient);
    read(first + step);
    Differentiated made[kLaneRows];
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      const int row = GetRow(first, i);
      const bool writes = has && row < rows;
      bf16* const to = dgate_up + static_cast<int64_t>(row) * 2 * width + mine;
      made[i] = Differentiate(gradient[i], gate[i], up[i]);
      WriteIf(writes, to, made[i].dgate);
      WriteIf(writes, to + width, made[i].dup);
    }
    of_gates.Add(gate_inner, made[0].dgate, made[1].dgate);
    of_ups.Add(up_inner, made[0].dup, made[1].dup);
    of_outputs.Add(dy_inner, made[0].y, made[1].y);
  }
  if (!has) return;
  float* const to = partial + static_cast<int64_t>(blockIdx.y) * kTerms * kPart * width + mine;
  of_gates.Write(to, width);
  of_ups.Write(to + int64_t{1} * kPart * width, width);
  of_outputs.Write(to + int64_t{2} * kPart * width, width);
}

// A block adds the parts of kPart elements of the rank and as many columns of one term.
__global__ void AddPartsKernel(const float* partial, int parts, int width, LowRankGradients gradients) {
  __shared__ float tile[kPart][kPart + 1];
  const int t = static_cast<int>(blockIdx.y);
  const LowRankGradient gradient = t == 0 ? gradients.gate : t == 1 ? gradients.up : gradients.dy;
  if (gradient.sum == nullptr) return;
  const int column = static_cast<int>(blockIdx.x) * kPart, mine = column + static_cast<int>(threadIdx.x);
  for (int element = static_cast<int>(threadIdx.y); element < kPart; element += static_cast<int>(blockDim.y)) {
    float sum = 0;
    for (int part = 0; part < parts && mine < width; ++part) {
      sum += partial[((static_cast<int64_t>(part) * kTerms + t) * kPart + element) * width + mine];
    }
    sum *= gradient.scale;
    if (!gradient.is_transposed) {
      if (element < gradient.rank && mine < width) gradient.sum[static_cast<int64_t>(element) * width + mine] += sum;
    } else {
      tile[element][threadIdx.x] = sum;
    }
  }
  if (!gradient.is_transposed) return;
  __syncthreads();
  // In [width, rank] the block's rows are neighbours.
  for (int row = static_cast<int>(threadIdx.y); row < kPart; row += static_cast<int>(blockDim.y)) {
    if (column + row < width && static_cast<int>(threadIdx.x) < gradient.rank) {
      gradient.sum[static_cast<int64_t>(column + row) * gradient.rank + threadIdx.x] += tile[threadIdx.x][row];
    }
  }
}

dim3 GetGrid(int64_t rows, int64_t width, int resident, int waves = kWaves) {
  const int64_t across = DivideUp(width, kWarps * kTileColumns);
  const int64_t most = std::max<int64_t>(int64_t{1} * kMultiprocessors * resident * waves / across, 1);
  return dim3(static_cast<unsigned>(across), static_cast<unsigned>(std::min(DivideUp(rows, kTileRows), most)));
}

bool Fits(const LowRank& term) {
  return term.rank == 0 || (term.rank % 8 == 0 && term.inner_stride % 8 == 0 && term.inner != nullptr);
}

}  // namespace

cudaError_t LowRankSwiGlu(const LowRank& of_gate, const LowRank& of_up, const void* gate_up, int64_t rows,
                          int64_t width, void* y, cudaStream_t stream) {
  if (!Fits(of_gate) || !Fits(of_up) || width % kLaneColumns != 0) return cudaErrorInvalidValue;
  const bool one_part = std::max(of_gate.rank, of_up.rank) <= kPart;
  const auto kernel = one_part ? ForwardKernel<true> : ForwardKernel<false>;
  kernel<<<GetGrid(rows, width, kForwardResident), kThreads, 0, stream>>>(
      of_gate, of_up, static_cast<const bf16*>(gate_up), static_cast<int>(rows), static_cast<int>(width),
      static_cast<bf16*>(y));
  return cudaGetLastError();
}

cudaError_t LowRankSwiGluBackward(const LowRank& of_dy, const LowRank& of_gate, const LowRank& of_up, const void* dy,
                                  const void* gate_up, int64_t rows, int64_t width, void* dgate_up, void* y,
                                  cudaStream_t stream) {
  if (!Fits(of_dy) || !Fits(of_gate) || !Fits(of_up) || width % kLaneColumns != 0) return cudaErrorInvalidValue;
  const bool one_part = std::max({of_dy.rank, of_gate.rank, of_up.rank}) <= kPart;
  const auto kernel = one_part ? BackwardKernel<true> : BackwardKernel<false>;
  kernel<<<GetGrid(rows, width, kBackwardResident), kThreads, 0, stream>>>(
      of_dy, of_gate, of_up, static_cast<const bf16*>(dy), static_cast<const bf16*>(gate_up), static_cast<int>(rows),
      static_cast<int>(width), static_cast<bf16*>(dgate_up), static_cast<bf16*>(y));
  return cudaGetLastError();
}

bool HasLowRankGradients(const LowRank& term) { return term.rank <= kPart; }

int64_t LowRankPartialElements(int64_t rows, int64_t width) {
  return int64_t{1} * GetGrid(rows, width, kGradientResident, kGradientWaves).y * kTerms * kPart * width;
}

cudaError_t LowRankSwiGluBackward(const LowRank& of_dy, const LowRank& of_gate, const LowRank& of_up, const void* dy,
                                  const void* gate_up, int64_t rows, int64_t width, void* dgate_up, float* partial,
                                  const LowRankGradients& gradients, cudaStream_t stream) {
  if (!Fits(of_dy) || !Fits(of_gate) || !Fits(of_up) || width % kLaneColumns != 0) return cudaErrorInvalidValue;
  if (std::max({of_dy.rank, of_gate.rank, of_up.rank}) > kPart) return cudaErrorInvalidValue;
  const dim3 grid = GetGrid(rows, width, kGradientResident, kGradientWaves);
  BackwardWithGradientsKernel<<<grid, kThreads, 0, stream>>>(
      of_dy, of_gate, of_up, static_cast<const bf16*>(dy), static_cast<const bf16*>(gate_up), static_cast<int>(rows),
      static_cast<int>(width), static_cast<bf16*>(dgate_up), partial);
  AddPartsKernel<<<dim3(static_cast<unsigned>(DivideUp(width, kPart)), kTerms), dim3(kPart, 8), 0, stream>>>(
      partial, static_cast<int>(grid.y), static_cast<int>(width), gradients);
  return cudaGetLastError();
}

}  // namespace syncopate::model::kernels
