#include "synchronizer/ipc/mapping_cache.h"

#include <algorithm>
#include <utility>

namespace syncopate::synchronizer::ipc {

std::shared_ptr<const MappedMemory> MappingCache::Find(uint64_t memory_id) {
  MutexLock lock(&mutex_);
  // Moves the entry to the front; a full cache drops its last entry.
  std::list<Entry> found = Extract(memory_id);
  entries_.splice(entries_.begin(), found);
  if (entries_.empty() || entries_.front().memory_id != memory_id) return nullptr;
  return entries_.front().mapped;
}

void MappingCache::Insert(uint64_t memory_id, std::shared_ptr<const MappedMemory> mapped) {
  if (!keeps()) return;
  std::list<Entry> dropped;  // unmapped without the lock
  MutexLock lock(&mutex_);
  dropped = Extract(memory_id);
  entries_.push_front({memory_id, std::move(mapped)});
  if (entries_.size() > capacity_) dropped.splice(dropped.begin(), entries_, std::prev(entries_.end()));
}

void MappingCache::Drop(uint64_t memory_id) {
  std::list<Entry> dropped;
  MutexLock lock(&mutex_);
  dropped = Extract(memory_id);
}

size_t MappingCache::size() const {
  MutexLock lock(&mutex_);
  return entries_.size();
}

// There are few entries, so a linear search is fastest.
std::list<MappingCache::Entry> MappingCache::Extract(uint64_t memory_id) {
  std::list<Entry> taken;
  auto found = std::ranges::find(entries_, memory_id, &Entry::memory_id);
  if (found != entries_.end()) taken.splice(taken.begin(), entries_, found);
  return taken;
}

}  // namespace syncopate::synchronizer::ipc
