#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "model/cuda/matmul.h"
#include "model/cuda/matmul_trial.h"
#include "rollouter/cuda/decode/decode_buffers.h"
#include "rollouter/cuda/decode/decode_model.h"
#include "rollouter/cuda/decode/decode_products.h"
#include "rollouter/cuda/decode/head_products.h"

namespace syncopate::rollouter {

// Chooses the kernels of a decoder's matrix products for each number of rows: the library's guess, the fastest by
// measurement (head.choose_fastest), or with head.bit_identical_rows only kernels that give a row the same bits in
// every pass. Bit-identical kernels are found by a reference of kReferenceRows rows and a trial that compares others
// with it.
//
// Not thread-safe. Make and MakeHead queue on the stream and overwrite the buffers; they block while they measure.
class ProductChoice {
 public:
  struct Options {
    int device = 0;
    HeadProducts::Options head = {};
    std::array<void*, 2> parts = {};  // this rank's parts of the sums over ranks; null without other ranks
    bool add_to_residual = true;      // see DecodeProducts::Options
    int32_t most_rows = 0;            // the most rows of the layers' products in the trial
    int32_t most_head_rows = 0;       // the most rows of the head's products in the trial
  };
  // A usual batch: its kernels are the reference for all other numbers of rows.
  static constexpr int32_t kReferenceRows = 256;

  // `shape`, `weights`, `buffers` and `stream` are borrowed. INTERNAL reason CUBLAS_ERROR or CUDA_ERROR.
  static absl::StatusOr<std::unique_ptr<ProductChoice>> Create(const DecodeShape& shape, const DecodeWeights& weights,
                                                               DecodeBuffers& buffers, const Options& options,
                                                               cudaStream_t stream);

  // The layers' products for passes of `rows` rows that have adapters of `places` places.
  absl::StatusOr<DecodeProducts> Make(int32_t rows, int32_t places = kAdapterPlaces);
  // Prepares head() for `rows` rows.
  absl::Status MakeHead(int32_t rows);
  HeadProducts& head() { return *head_; }
  // Frees the trial's device memory. Call it after the last Make and MakeHead.
  void EndTrial() { trial_.reset(); }

 private:
  ProductChoice(const DecodeShape& shape, const DecodeWeights& weights, DecodeBuffers& buffers, const Options& options,
                cudaStream_t stream)
      : shape_(shape), weights_(weights), buffers_(buffers), options_(options), stream_(stream) {}
  absl::Status MakeReference();

  const DecodeShape& shape_;
  const DecodeWeights& weights_;
  DecodeBuffers& buffers_;
  const Options options_;
  const cudaStream_t stream_;
  std::unique_ptr<model::MatmulLibrary> library_;
  std::unique_ptr<HeadProducts> head_;
  // Both are null without bit_identical_rows. The trial is also null if it could not be made: all numbers of rows use
  // the reference's kernels then.
  std::unique_ptr<const DecodeProducts> reference_;
  std::unique_ptr<const model::MatmulTrial> trial_;
};

}  // namespace syncopate::rollouter
