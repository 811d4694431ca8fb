#pragma once

#include <cstdint>
#include <list>
#include <memory>

#include "base/mutex.h"
#include "synchronizer/ipc/copy_engine.h"

namespace syncopate::synchronizer::ipc {

// Memory of other processes that is mapped here, by id, so that it is mapped once and not in every sync. Users share a
// mapping: a dropped mapping is unmapped when its last user is done. Thread-safe.
class MappingCache {
 public:
  // Capacity 0: nothing stays mapped without a user.
  explicit MappingCache(size_t capacity) : capacity_(capacity) {}

  bool keeps() const { return capacity_ > 0; }

  std::shared_ptr<const MappedMemory> Find(uint64_t memory_id);  // null if it is not mapped
  // Drops the least recently used mapping if there are more than `capacity`.
  void Insert(uint64_t memory_id, std::shared_ptr<const MappedMemory> mapped);
  void Drop(uint64_t memory_id);
  size_t size() const;

 private:
  struct Entry {
    uint64_t memory_id = 0;
    std::shared_ptr<const MappedMemory> mapped;
  };
  std::list<Entry> Extract(uint64_t memory_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t capacity_;
  mutable Mutex mutex_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // most recently used first
};

}  // namespace syncopate::synchronizer::ipc
