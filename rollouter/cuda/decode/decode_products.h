#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/cuda/matmul.h"
#include "model/cuda/matmul_trial.h"
#include "rollouter/cuda/decode/adapter_kernels.h"
#include "rollouter/cuda/decode/decode_buffers.h"
#include "rollouter/cuda/decode/decode_model.h"

namespace syncopate::rollouter {

// Creates a product whose result for a row is bit-identical to that of `reference`: the same algorithm, or with `trial`
// one that passed it. If `reference` is null, the library chooses.
absl::StatusOr<model::Matmul> MakeBitIdentical(const model::MatmulLibrary& library, const model::MatmulShape& shape,
                                               const model::Matmul* reference, const model::MatmulTrial* trial);

// The matrix products of a pass with a fixed number of rows, and what adapters add (adapter_kernels.h). DecodeBuffers
// gives the places of the results. A product whose matrix has adapters also makes x a^T of the sets in one place or in
// both, in columns behind its own, rounded to bf16; their product with b is scaled and added to y, which is rounded again.
class DecodeProducts {
 public:
  struct Options {
    int32_t rows = 0;
    int32_t places = kAdapterPlaces;     // whose x a^T is made: place 0 alone, or all
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

  // Without what the adapters add, which is left to RotateAndAppend.
  absl::Status Qkv(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);
  absl::Status Output(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);
  // With the activation: from the normed rows to DecodeBuffers::activated().
  absl::Status GateUpActivated(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);
  absl::Status Down(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);

  // Chooses each product's kernel by measuring it over the layers. Overwrites the buffers; blocks.
  absl::Status ChooseFastest(const DecodeWeights& weights, const DecodeBuffers& buffers, cudaStream_t stream);

  // The adapters of the product of Qkv(); nullopt: there are none.
  std::optional<AdaptedProduct> GetQkvAdapters(const DecodeLayer& layer, const DecodeBuffers& buffers) const;
  // The norm behind output (which = 0) or down (1) of `layer`, with what is still to be added to the residual. Only
  // without other ranks.
  absl::Status AddAndNorm(int which, const DecodeLayer& layer, const model::NormShape& shape, const void* weight,
                          const DecodeBuffers& buffers, cudaStream_t stream) const;

 private:
  // The result of `base`, of `columns` columns beside x a^T.
  AdaptedProduct GetAdapted(const model::Matmul& base, int32_t columns, absl::Span<const AdapterColumns> adapters,
                            const DecodeBuffers& buffers) const;
  // The result of output (which = 0) or down (1).
  AdaptedProduct GetAdapted(int which, const DecodeLayer& layer, const DecodeBuffers& buffers) const;
  // Adds what the adapters of output (which = 0) or down (1) add, and the residual without other ranks; unless the norm
  // does.
  absl::Status AddToResidual(int which, const DecodeLayer& layer, const DecodeBuffers& buffers,
                             cudaStream_t stream) const;

  DecodeProducts(const DecodeShape& shape, const Options& options, std::array<model::Matmul, 4> products);
  // The destination of output's (which = 0) or down's (1) matrix product, and of what the rank adds to the sum.
  void* GetProduct(int which, const DecodeBuffers& buffers) const;
  void* GetResult(int which, const DecodeBuffers& buffers) const;
  bool IsAdapted(int which) const { return is_adapted_[static_cast<size_t>(which)]; }
  // Whether one kernel adds what an adapter adds to output (which = 0) or down (1) and norms. Not with bit_identical_rows:
  // the two kernels that few rows have add a row's squares in another order.
  bool NormAdds(const AdaptedProduct& product) const;

  DecodeShape shape_;
  int32_t places_;
  model::Matmul qkv_, output_, gate_up_, down_;
  std::array<void*, 2> parts_;
  std::array<bool, 2> is_adapted_;  // whether output and down have adapters
  bool add_to_residual_;
  bool bit_identical_rows_;
};

}  // namespace syncopate::rollouter
