#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "synchronizer/transport/weight_store.h"

namespace syncopate::synchronizer {

// A store that damages the chunks of another store: it flips bits, breaks off, slows down.
class FaultyStore final : public WeightStore {
 public:
  // Called after each chunk was read, with the chunk's number since the start (from 0), its range and its bytes. If it
  // returns an error, the reader gets the error instead of the bytes.
  using OnChunk = std::function<absl::Status(int chunk, ByteRange range, char* bytes)>;

  explicit FaultyStore(WeightStore* store) : FaultyStore(store, store->fingerprint()) {}
  // Makes the store claim that it stages (a shard of) another model.
  FaultyStore(WeightStore* store, uint64_t fingerprint) : store_(store), fingerprint_(fingerprint) {}

  void SetOnChunk(OnChunk on_chunk) {
    MutexLock lock(&mutex_);
    on_chunk_ = std::move(on_chunk);
    chunks_ = 0;
  }
  int chunks() {
    MutexLock lock(&mutex_);
    return chunks_;
  }

  uint64_t fingerprint() const override { return fingerprint_; }
  absl::StatusOr<std::unique_ptr<WeightReader>> Open(PolicyVersion version) override {
    SYNCOPATE_ASSIGN_OR_RETURN(auto reader, store_->Open(version));
    return std::unique_ptr<WeightReader>(new Reader(this, std::move(reader)));
  }

 private:
  class Reader final : public WeightReader {
   public:
    Reader(FaultyStore* store, std::unique_ptr<WeightReader> reader) : store_(store), reader_(std::move(reader)) {}
    absl::Status Read(ByteRange range, char* to) override {
      SYNCOPATE_RETURN_IF_ERROR(reader_->Read(range, to));
      return store_->Disturb(range, to);
    }

   private:
    FaultyStore* store_;
    std::unique_ptr<WeightReader> reader_;
  };

  absl::Status Disturb(ByteRange range, char* bytes) {
    OnChunk on_chunk;
    int chunk = 0;
    {
      MutexLock lock(&mutex_);
      on_chunk = on_chunk_;
      chunk = chunks_++;
    }
    return on_chunk ? on_chunk(chunk, range, bytes) : absl::OkStatus();
  }

  WeightStore* const store_;
  const uint64_t fingerprint_;
  Mutex mutex_;
  OnChunk on_chunk_ ABSL_GUARDED_BY(mutex_);
  int chunks_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncopate::synchronizer
