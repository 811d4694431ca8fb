#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "model/transformer.h"
#include "rollouter/engine/step_plan.h"

namespace syncopate::rollouter {

// Where the rows of one batch have their keys and values: row r is position rows[r].position of a sequence whose block
// table is tables[rows[r].table].
struct KvBatch {
  struct Row {
    int32_t table = 0;
    int32_t position = 0;
  };
  std::vector<absl::Span<const BlockIndex>> tables;
  std::vector<Row> rows;
};

// Keys and values of all sequences, in blocks, on one device; the block after the last one is for rows that only pad a
// batch. Not thread-safe. All may throw c10::Error.
class KvStore {
 public:
  virtual ~KvStore() = default;
  virtual int64_t bytes() const = 0;  // held now
  // Gives the memory back, and what it holds is lost; the next use comes after Restore(). Both do nothing if it is so
  // already.
  virtual void Release() = 0;
  virtual void Restore() = 0;

  virtual void SwapOut(absl::Span<const BlockSwap> swaps) = 0;
  virtual void SwapIn(absl::Span<const BlockSwap> swaps) = 0;
  virtual void Copy(absl::Span<const BlockCopy> copies) = 0;

  // Attention of one batch; the store and what the tables point to must outlive it. Writes the rows' keys and values at
  // their places, then lets each row attend to positions [0, its own] of its sequence. Every position before a row's
  // own is either in the store or in the batch. What a row gets depends on its own positions alone.
  virtual std::unique_ptr<model::Attention> MakeAttention(KvBatch batch) = 0;
};

}  // namespace syncopate::rollouter
