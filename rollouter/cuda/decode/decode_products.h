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

// A product that gives a row the bits that `like` gives it: by its way, or with a trial by one that is alike there. The
// library's choice if it is null.
absl::StatusOr<model::Matmul> MakeAlike(const model::MatmulLibrary& library, const model::MatmulShape& shape,
                                        const model::Matmul* like, const model::MatmulTrial* trial);

// The matrix products of a pass of so many rows. Results go where DecodeBuffers says.
class DecodeProducts {
 public:
  struct Options {
    int32_t rows = 0;
    bool add_to_residual = true;  // output and down are added to the residual; else they are `projected`
    // Or this rank's parts of them, in these two places; null: there are no others.
    std::array<void*, 2> parts = {};
    bool rows_alike = false;  // as MatmulShape
    // Its ways are taken, however many rows it has; all else is the same. Null: the library's choice.
    const DecodeProducts* like = nullptr;
    // Other ways are taken for other numbers of rows where they give the same bits on this.
    const model::MatmulTrial* trial = nullptr;
  };
  // Its products' shapes are in the extent.
  static void Include(const DecodeShape& shape, int32_t rows, model::MatmulTrial::Extent& extent);
  static absl::StatusOr<DecodeProducts> Create(const model::MatmulLibrary& library, const DecodeShape& shape,
                                               const Options& options);

  absl::Status Qkv(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);
  absl::Status Output(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);
  absl::Status GateUp(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);
  absl::Status Down(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);

  // Chooses each product's kernel by measuring it over all layers. Overwrites the buffers.
  absl::Status ChooseFastest(const DecodeWeights& weights, const DecodeBuffers& buffers, cudaStream_t stream);

  bool adds_to_residual() const { return output_.shape().accumulate; }

 private:
  DecodeProducts(model::Matmul qkv, model::Matmul output, model::Matmul gate_up, model::Matmul down,
                 std::array<void*, 2> parts);
  // Where output (0) and down (1) go.
  void* GetResult(int which, const DecodeBuffers& buffers) const;

  model::Matmul qkv_, output_, gate_up_, down_;
  std::array<void*, 2> parts_;
};

}  // namespace syncopate::rollouter
