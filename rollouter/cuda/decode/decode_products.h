#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "model/cuda/matmul.h"
#include "model/cuda/matmul_trial.h"
#include "rollouter/cuda/decode/decode_buffers.h"
#include "rollouter/cuda/decode/decode_model.h"

namespace syncopate::rollouter {

// Creates a product whose result for a row is bit-identical to that of `like`: the same algorithm, or with `trial` one
// that passed it. If `like` is null, the library chooses.
absl::StatusOr<model::Matmul> MakeAlike(const model::MatmulLibrary& library, const model::MatmulShape& shape,
                                        const model::Matmul* like, const model::MatmulTrial* trial);

// The matrix products of a pass with a fixed number of rows. DecodeBuffers gives the places of the results.
class DecodeProducts {
 public:
  struct Options {
    int32_t rows = 0;
    bool add_to_residual = true;  // output and down add to the residual; else they write `projected`
    // The two buffers for this rank's parts of output and down; null: there is one rank.
    std::array<void*, 2> parts = {};
    bool rows_alike = false;  // see MatmulShape
    // Products whose algorithms are used for any number of rows; everything else is equal. Null: the library chooses.
    const DecodeProducts* like = nullptr;
    // Allows other algorithms for other numbers of rows if their results on this trial are bit-identical.
    const model::MatmulTrial* trial = nullptr;
  };
  // Adds the products' shapes to `extent`.
  static void Include(const DecodeShape& shape, int32_t rows, model::MatmulTrial::Extent& extent);
  static absl::StatusOr<DecodeProducts> Create(const model::MatmulLibrary& library, const DecodeShape& shape,
                                               const Options& options);

  absl::Status Qkv(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);
  absl::Status Output(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);
  absl::Status GateUp(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);
  absl::Status Down(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);

  // Chooses each product's kernel by measuring it over the layers. Overwrites the buffers; blocks.
  absl::Status ChooseFastest(const DecodeWeights& weights, const DecodeBuffers& buffers, cudaStream_t stream);

  bool adds_to_residual() const { return output_.shape().accumulate; }

 private:
  DecodeProducts(model::Matmul qkv, model::Matmul output, model::Matmul gate_up, model::Matmul down,
                 std::array<void*, 2> parts);
  // The destination of output (which = 0) or down (which = 1).
  void* GetResult(int which, const DecodeBuffers& buffers) const;

  model::Matmul qkv_, output_, gate_up_, down_;
  std::array<void*, 2> parts_;
};

}  // namespace syncopate::rollouter
