#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

// Matrix products of a fixed shape by cuBLASLt. No libtorch.
namespace syncopate::model {

// y [rows, n] = x [rows, k] w [n, k]^T, bf16 with float32 sums; with `bias` + b [n]; with `accumulate` + y as it was.
struct MatmulShape {
  int32_t rows = 0;
  int32_t n = 0;
  int32_t k = 0;
  bool bias = false;
  bool accumulate = false;
  bool float32_result = false;  // else bf16
  int32_t result_stride = 0;    // elements from row to row of y; 0: n
  // A row of y has the same bits wherever the row of x stands and whatever the others are: none of the ways that give
  // parts of a sum to several blocks.
  bool rows_alike = false;

  friend bool operator==(const MatmulShape&, const MatmulShape&) = default;
};

struct MatmulOperands {
  const void* w = nullptr;
  const void* x = nullptr;
  const void* bias = nullptr;
  void* y = nullptr;
};

// The library's handle on one device, and the memory its products work in. Products that share one must be on one
// stream. Move-only; not thread-safe.
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

// One product's plan. Move-only; keeps a reference to its library.
class Matmul {
 public:
  // The ways that the library thinks of, best first by its own guess, of which the first is chosen. INTERNAL reason
  // CUBLAS_ERROR, naming the shape, if there is none.
  static absl::StatusOr<Matmul> Create(const MatmulLibrary& library, const MatmulShape& shape);
  // By the way that `like` has chosen, whose shape differs in `rows` alone. With rows_alike a row then has the same bits
  // from both. INTERNAL reason CUBLAS_ERROR if the library does not take it for so many rows.
  static absl::StatusOr<Matmul> CreateLike(const MatmulLibrary& library, const MatmulShape& shape, const Matmul& like);
  // The same, but by the first way that the library thinks of for so many rows, if on made-up operands it gives the bits
  // that the other one's way gives. Blocks.
  static absl::StatusOr<Matmul> CreateAlike(const MatmulLibrary& library, const MatmulShape& shape, const Matmul& like,
                                            const MatmulTrial& trial);
  ~Matmul();
  Matmul(Matmul&&) noexcept;
  Matmul& operator=(Matmul&&) noexcept;

  // Queues the product by the chosen way, and returns; may be captured.
  absl::Status Queue(const MatmulOperands& operands, cudaStream_t stream);

  // Times each way on `operands` in turn (several sets, so that weights come from memory and not from the cache) and
  // chooses the fastest. Blocks for some milliseconds a way. y is overwritten, or added to. `operands` is not empty.
  absl::Status ChooseFastest(const std::vector<MatmulOperands>& operands, cudaStream_t stream);

  const MatmulShape& shape() const;

 private:
  struct State;
  explicit Matmul(std::unique_ptr<State> state);
  static absl::StatusOr<std::unique_ptr<State>> Described(const MatmulLibrary& library, const MatmulShape& shape);
  std::unique_ptr<State> state_;
};

}  // namespace syncopate::model
