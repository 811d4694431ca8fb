#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/file_descriptor.h"
#include "rollouter/engine/adapter_sets.h"

namespace syncopate::rollouter {

// Host memory of AdapterSets::kSets address ranges [base | adapters] that never move. The first `base_bytes` of all
// ranges are the same memory: what is written to one range is read in all. The adapters of each range have memory of
// their own. All of it is zeros at first. Not thread-safe; the bytes are for the user to guard.
class SharedBaseMemory {
 public:
  // `base_bytes` is a multiple of the page, `bytes` that of one range. Throws std::bad_alloc if addresses or memory do
  // not suffice.
  SharedBaseMemory(int64_t base_bytes, int64_t bytes);
  ~SharedBaseMemory();
  SharedBaseMemory(const SharedBaseMemory&) = delete;
  SharedBaseMemory& operator=(const SharedBaseMemory&) = delete;

  char* range(int32_t set) const { return ranges_[static_cast<size_t>(set)]; }
  int64_t bytes() const;  // of memory: the base once, and the adapters of each set that has them

  // Gives memory back to the system: all of it, or all but the base and the adapters of the set `kept`. What is given
  // back reads as zeros after Restore(); nobody may read or write it before. Each does nothing if it is done.
  absl::Status Release(std::optional<int32_t> kept);
  absl::Status Restore();

 private:
  const int64_t base_bytes_;
  const int64_t adapter_bytes_;  // rounded up to pages
  const int64_t requested_bytes_;
  FileDescriptor base_;        // anonymous memory with a descriptor, so that it can be mapped several times
  std::vector<char*> ranges_;  // by set
  bool has_base_ = true;
  std::vector<bool> has_adapters_;  // by set
};

}  // namespace syncopate::rollouter
