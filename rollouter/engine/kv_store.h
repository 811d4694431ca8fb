#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "model/transformer.h"
#include "rollouter/engine/step_plan.h"

namespace syncopate::rollouter {

// The places of the keys and values of one batch: row r is position rows[r].position of a sequence whose block table is
// tables[rows[r].table].
struct KvBatch {
  struct Row {
    int32_t table = 0;
    int32_t position = 0;
  };
  std::vector<absl::Span<const BlockIndex>> tables;
  std::vector<Row> rows;
};

// Keys and values of all sequences, in blocks, on one device; the block after the last one is for rows that only pad a
// batch. Not thread-safe. All methods may throw c10::Error.
class KvStore {
 public:
  virtual ~KvStore() = default;
  virtual int64_t bytes() const = 0;       // memory allocated now on the device
  virtual int64_t host_bytes() const = 0;  // memory allocated now for swapped blocks
  // Release() frees the memory and loses its contents; Restore() must come before the next use. A repeated call does
  // nothing.
  virtual void Release() = 0;
  virtual void Restore() = 0;

  // Frees the memory of the blocks from `first` on, and loses their contents. Their memory is allocated again when they
  // are used.
  virtual void FreeFrom(BlockIndex first) = 0;

  virtual void SwapOut(absl::Span<const BlockSwap> swaps) = 0;
  virtual void SwapIn(absl::Span<const BlockSwap> swaps) = 0;
  virtual void Copy(absl::Span<const BlockCopy> copies) = 0;

  // Creates the attention of one batch; the store and the tables' memory must outlive it. It writes the rows' keys and
  // values to their places, then lets each row attend to positions [0, its own] of its sequence. Every position before
  // a row's own is either in the store or in the batch. The result of a row depends only on its own positions.
  virtual std::unique_ptr<model::Attention> MakeAttention(KvBatch batch) = 0;
};

}  // namespace syncopate::rollouter
