#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/cuda/matmul.h"
#include "model/cuda/matmul_trial.h"
#include "rollouter/cuda/decode/decode_buffers.h"
#include "rollouter/cuda/decode/decode_model.h"

namespace syncopate::rollouter {

// Creates a product whose result for a row is bit-identical to that of `reference`: the same algorithm, or with `trial`
// one that passed it. If `reference` is null, the library chooses.
absl::StatusOr<model::Matmul> MakeBitIdentical(const model::MatmulLibrary& library, const model::MatmulShape& shape,
                                               const model::Matmul* reference, const model::MatmulTrial* trial);

// The matrix products of a pass with a fixed number of rows, and what their adapters add: x a^T is rounded to bf16, its
// product with b is scaled and added to y, which is rounded again. DecodeBuffers gives the places of the results.
class DecodeProducts {
 public:
  struct Options {
    int32_t rows = 0;
    bool add_to_residual = true;         // output and down add to the residual; else they write `projected`
    const DecodeLayer* layer = nullptr;  // any layer: all of them have adapters of the same columns
    // The two buffers for this rank's parts of output and down; null: there is one rank.
    std::array<void*, 2> parts = {};
    bool bit_identical_rows = false;  // see MatmulShape
    // The products of another number of rows, whose results for a row these must equal bit by bit. Null: the library
    // chooses.
    const DecodeProducts* reference = nullptr;
    // Not null: other algorithms than the reference's may be used if their results on this trial are bit-identical.
    const model::MatmulTrial* trial = nullptr;
  };
  // Adds the products' shapes to `extent`.
  static void Include(const DecodeShape& shape, const DecodeLayer& layer, int32_t rows,
                      model::MatmulTrial::Extent& extent);
  static absl::StatusOr<DecodeProducts> Create(const model::MatmulLibrary& library, const DecodeShape& shape,
                                               const Options& options);

  absl::Status Qkv(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);
  absl::Status Output(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);
  absl::Status GateUp(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);
  absl::Status Down(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);

  // Chooses each product's kernel by measuring it over the layers. Overwrites the buffers; blocks.
  absl::Status ChooseFastest(const DecodeWeights& weights, const DecodeBuffers& buffers, cudaStream_t stream);

  bool adds_to_residual() const { return output_.base.shape().accumulate; }

 private:
  // A product of all layers and its adapters.
  struct Product {
    model::Matmul base;
    std::vector<model::Matmul> inner;  // x a^T: one for all adapters if their a are one matrix, else one for each
    std::vector<model::Matmul> outer;  // what each adapter adds to its columns of y
  };
  struct Operands {
    model::MatmulOperands base;
    absl::Span<const DecodeAdapter> adapters;
  };
  // Whether x a^T of these adapters is one product: their a lie side by side.
  static bool AreJoint(const DecodeShape& shape, const model::MatmulShape& base,
                       absl::Span<const DecodeAdapter> adapters);
  static model::MatmulShape GetInnerShape(const DecodeShape& shape, const model::MatmulShape& base, size_t joint);
  static model::MatmulShape GetOuterShape(const DecodeShape& shape, const model::MatmulShape& base,
                                          const DecodeAdapter& adapter, size_t joint);
  static absl::StatusOr<Product> MakeProduct(const model::MatmulLibrary& library, const DecodeShape& shape,
                                             const model::MatmulShape& base, absl::Span<const DecodeAdapter> adapters,
                                             const Product* reference, const model::MatmulTrial* trial);
  static absl::Status Queue(Product& product, const Operands& operands, const DecodeBuffers& buffers,
                            cudaStream_t stream);
  static absl::Status ChooseFastest(Product& product, absl::Span<const Operands> operands, const DecodeBuffers& buffers,
                                    cudaStream_t stream);

  DecodeProducts(Product qkv, Product output, Product gate_up, Product down, std::array<void*, 2> parts);
  // The destination of output (which = 0) or down (which = 1).
  void* GetResult(int which, const DecodeBuffers& buffers) const;

  Product qkv_, output_, gate_up_, down_;
  std::array<void*, 2> parts_;
};

}  // namespace syncopate::rollouter
