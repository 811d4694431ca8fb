#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

// Matrix products of a fixed shape by cuBLASLt. No libtorch.
namespace syncopate::model {

// y [rows, n] = scale x [rows, k] w [n, k]^T, bf16 with float32 sums; with `bias` + b [n]; with `accumulate` + y as it
// was.
struct MatmulShape {
  int32_t rows = 0;
  int32_t n = 0;
  int32_t k = 0;
  bool bias = false;
  bool accumulate = false;
  bool float32_result = false;  // else bf16
  int32_t result_stride = 0;    // elements from row to row of y; 0: n
  int32_t x_stride = 0;         // elements from row to row of x; 0: k
  int32_t alignment = 256;      // bytes of which the addresses of x and y are multiples
  float scale = 1;
  // The bits of a row of y depend neither on the index of its row of x nor on the other rows. This excludes algorithms
  // that split a sum over several blocks.
  bool bit_identical_rows = false;

  friend bool operator==(const MatmulShape&, const MatmulShape&) = default;
};

struct MatmulOperands {
  const void* w = nullptr;
  const void* x = nullptr;
  const void* bias = nullptr;
  void* y = nullptr;
};

// The cuBLASLt handle of one device, and the workspace of its products. Products that share a MatmulLibrary must be on
// one stream. Move-only; not thread-safe.
class MatmulLibrary {
 public:
  static constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;

  // `workspace`: device memory of kWorkspaceBytes that outlives this. INTERNAL reason CUBLAS_ERROR.
  static absl::StatusOr<MatmulLibrary> Create(void* workspace);
  ~MatmulLibrary();
  MatmulLibrary(MatmulLibrary&&) noexcept;
  MatmulLibrary& operator=(MatmulLibrary&&) noexcept;

 private:
  friend class Matmul;
  struct State;
  explicit MatmulLibrary(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class MatmulTrial;

// One product's plan: a list of algorithms of the library, and the chosen one. Move-only; its library must outlive it.
class Matmul {
 public:
  // Lists the algorithms of the library's heuristic, best first, and chooses the first. INTERNAL reason CUBLAS_ERROR,
  // naming the shape, if there is none.
  static absl::StatusOr<Matmul> Create(const MatmulLibrary& library, const MatmulShape& shape);
  // Uses the algorithm that `reference` has chosen; the two shapes may differ only in `rows`. With bit_identical_rows,
  // the result for a row is bit-identical to reference's. INTERNAL reason CUBLAS_ERROR if the library refuses the
  // algorithm for shape.rows rows.
  static absl::StatusOr<Matmul> CreateWithReference(const MatmulLibrary& library, const MatmulShape& shape,
                                                    const Matmul& reference);
  // The same as CreateWithReference, but it uses the first algorithm of the heuristic for shape.rows rows whose result on the
  // operands of `trial` is bit-identical to that of the reference's algorithm; tries three, else uses that. `shape`
  // must have bit_identical_rows and an even k. Blocks.
  static absl::StatusOr<Matmul> CreateBitIdentical(const MatmulLibrary& library, const MatmulShape& shape,
                                                   const Matmul& reference, const MatmulTrial& trial);
  ~Matmul();
  Matmul(Matmul&&) noexcept;
  Matmul& operator=(Matmul&&) noexcept;

  // Queues the product with the chosen algorithm and returns; may be captured.
  absl::Status Queue(const MatmulOperands& operands, cudaStream_t stream);

  // Times each algorithm on all of `operands` (several sets, so that weights are read from memory and not from the
  // cache) and chooses the fastest. Blocks for some milliseconds for each algorithm. y is overwritten, or added to.
  // `operands` must not be empty.
  absl::Status ChooseFastest(const std::vector<MatmulOperands>& operands, cudaStream_t stream);

  const MatmulShape& shape() const;

 private:
  struct State;
  explicit Matmul(std::unique_ptr<State> state);
  static absl::StatusOr<std::unique_ptr<State>> Described(const MatmulLibrary& library, const MatmulShape& shape);
  std::unique_ptr<State> state_;
};

}  // namespace syncopate::model
