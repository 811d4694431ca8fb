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

// Tokens [begin, begin + count) of the vocabulary.
struct VocabSlice {
  int32_t begin = 0;
  int32_t count = 0;
};
// A rank's, when ranks share the vocabulary out; the last ones may have less than others, or nothing.
VocabSlice SliceOfRank(int32_t vocab, int32_t rank, int32_t world);

// Logits: the product of rows that are drawn from and the model's head, for each number of rows. Rank 0 makes all of
// them, or every rank its slice, which it writes to rank 0's memory.
class HeadProducts {
 public:
  enum class Input : uint8_t { kNormed, kGathered };
  struct Options {
    VocabSlice slice = {};  // that this rank makes; may be empty
    bool float32_logits = true;
    bool rows_alike = false;  // as MatmulShape
    bool choose_fastest = true;
    DeviceRanks* sharers = nullptr;  // who make the other slices; null: nobody
  };
  // What is given here is borrowed.
  HeadProducts(const model::MatmulLibrary& library, const DecodeShape& shape, const DecodeWeights& weights,
               const DecodeBuffers& buffers, const Options& options)
      : library_(library), shape_(shape), weights_(weights), buffers_(buffers), options_(options) {}

  // The way that the library takes for so many rows is that of all products from now on.
  absl::Status MakePattern(int32_t rows);
  // With choose_fastest it blocks, and overwrites the buffers. `trial`: as DecodeProducts::Options.
  absl::Status Make(int32_t rows, const model::MatmulTrial* trial, cudaStream_t stream);
  void Include(int32_t rows, model::MatmulTrial::Extent& extent) const;
  // For a number of rows that was made: when this is over rank 0 has all of their logits. Every rank calls.
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
