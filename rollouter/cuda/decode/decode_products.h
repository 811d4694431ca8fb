#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "model/cuda/matmul.h"
#include "rollouter/cuda/decode/decode_buffers.h"
#include "rollouter/cuda/decode/decode_model.h"

namespace syncopate::rollouter {

// The matrix products of a step of one batch size. Results go where DecodeBuffers says.
class DecodeProducts {
 public:
  struct Options {
    int32_t rows = 0;
    bool float32_logits = true;
    bool add_to_residual = true;  // output and down are added to the residual; else they are `projected`
  };
  static absl::StatusOr<DecodeProducts> Create(const model::MatmulLibrary& library, const DecodeShape& shape,
                                               const Options& options);

  absl::Status Qkv(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);
  absl::Status Output(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);
  absl::Status GateUp(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);
  absl::Status Down(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);
  absl::Status Head(const DecodeWeights& weights, const DecodeBuffers& buffers, cudaStream_t stream);

  // Chooses each product's kernel by measuring it over all layers. Overwrites the buffers.
  absl::Status ChooseFastest(const DecodeWeights& weights, const DecodeBuffers& buffers, cudaStream_t stream);

  bool adds_to_residual() const { return output_.shape().accumulate; }

 private:
  DecodeProducts(model::Matmul qkv, model::Matmul output, model::Matmul gate_up, model::Matmul down,
                 model::Matmul head);

  model::Matmul qkv_, output_, gate_up_, down_, head_;
};

}  // namespace syncopate::rollouter
