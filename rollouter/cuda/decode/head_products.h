#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "absl/status/statusor.h"
#include "model/cuda/matmul.h"
#include "model/cuda/matmul_trial.h"
#include "rollouter/cuda/decode/decode_buffers.h"
#include "rollouter/cuda/decode/decode_model.h"
#include "rollouter/cuda/decode/device_ranks.h"

namespace syncopate::rollouter {

// The tokens [begin, begin + count) of the vocabulary.
struct VocabSlice {
  int32_t begin = 0;
  int32_t count = 0;
};
// Returns a rank's slice when ranks share the vocabulary; the last ranks may have a smaller or an empty slice.
VocabSlice SliceOfRank(int32_t vocab, int32_t rank, int32_t world);

// Computes logits: the product of the rows that are drawn from and the model's head, for each number of rows. Rank 0
// computes all of them, or every rank computes its slice and writes it to rank 0's memory.
class HeadProducts {
 public:
  enum class Input : uint8_t { kNormed, kGathered };
  struct Options {
    VocabSlice slice = {};  // the part that this rank computes; may be empty
    bool float32_logits = true;
    bool bit_identical_rows = false;  // see MatmulShape
    bool choose_fastest = true;
    DeviceRanks* sharers = nullptr;  // the ranks that compute the other slices; null: none
  };
  // All references are borrowed.
  HeadProducts(const model::MatmulLibrary& library, const DecodeShape& shape, const DecodeWeights& weights,
               const DecodeBuffers& buffers, const Options& options)
      : library_(library), shape_(shape), weights_(weights), buffers_(buffers), options_(options) {}

  // Makes the algorithm that the library chooses for `rows` rows the reference for all later products.
  absl::Status MakePattern(int32_t rows);
  // Creates the product for `rows` rows. With choose_fastest it blocks and overwrites the buffers. `trial`: see
  // DecodeProducts::Options.
  absl::Status Make(int32_t rows, const model::MatmulTrial* trial, cudaStream_t stream);
  // Adds the product's shape to `extent`.
  void Include(int32_t rows, model::MatmulTrial::Extent& extent) const;
  // Queues the product for a number of rows passed to Make(); when it completes, rank 0 has all logits. Every rank must
  // call it.
  absl::Status Queue(int32_t rows, Input input, cudaStream_t stream);

 private:
  model::MatmulShape ShapeFor(int32_t rows) const;
  model::MatmulOperands Operands(Input input) const;

  const model::MatmulLibrary& library_;
  const DecodeShape& shape_;
  const DecodeWeights& weights_;
  const DecodeBuffers& buffers_;
  const Options options_;
  std::optional<model::Matmul> pattern_;
  std::map<int32_t, model::Matmul> products_;  // by rows
};

}  // namespace syncopate::rollouter
