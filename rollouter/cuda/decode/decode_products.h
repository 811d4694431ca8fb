#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "model/cuda/matmul.h"
#include "rollouter/cuda/decode/decode_buffers.h"
#include "rollouter/cuda/decode/decode_model.h"

namespace syncopate::rollouter {

// The matrix products of a pass of so many rows. Results go where DecodeBuffers says.
class DecodeProducts {
 public:
  struct Options {
    int32_t rows = 0;
    bool add_to_residual = true;    // output and down are added to the residual; else they are `projected`,
    bool replace_residual = false;  // or the residual itself: this rank's part of it
    bool rows_alike = false;        // as MatmulShape
  };
  static absl::StatusOr<DecodeProducts> Create(const model::MatmulLibrary& library, const DecodeShape& shape,
                                               const Options& options);

  absl::Status Qkv(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);
  absl::Status Output(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);
  absl::Status GateUp(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);
  absl::Status Down(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream);

  // Chooses each product's kernel by measuring it over all layers. Overwrites the buffers.
  absl::Status ChooseFastest(const DecodeWeights& weights, const DecodeBuffers& buffers, cudaStream_t stream);

  // Output and down leave nothing in `projected`.
  bool writes_residual() const { return writes_residual_; }

 private:
  DecodeProducts(model::Matmul qkv, model::Matmul output, model::Matmul gate_up, model::Matmul down,
                 bool writes_residual);

  model::Matmul qkv_, output_, gate_up_, down_;
  bool writes_residual_;
};

// Logits of so many rows.
class HeadProduct {
 public:
  enum class Input : uint8_t { kNormed, kGathered };
  struct Options {
    int32_t rows = 0;
    bool float32_logits = true;
    bool rows_alike = false;  // as MatmulShape
  };
  static absl::StatusOr<HeadProduct> Create(const model::MatmulLibrary& library, const DecodeShape& shape,
                                            const Options& options);
  absl::Status Queue(const DecodeWeights& weights, const DecodeBuffers& buffers, Input input, cudaStream_t stream);
  absl::Status ChooseFastest(const DecodeWeights& weights, const DecodeBuffers& buffers, cudaStream_t stream);

 private:
  explicit HeadProduct(model::Matmul product) : product_(std::move(product)) {}
  model::Matmul product_;
};

}  // namespace syncopate::rollouter
