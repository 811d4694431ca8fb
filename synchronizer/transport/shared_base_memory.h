#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "synchronizer/lent_memory.h"

namespace syncopate::synchronizer {

// Host memory of several address ranges [base | rest] that never move. The base of all ranges is the same memory: what is
// written to one range is read in all. The rest of each range has memory of its own. All of it is zeros at first.
//
// The base is this process's own memory, or memory that another process lends, or not there:
//
//   own --Lend()--> own, and nobody can write to it any more: neither this process nor those that map it
//   none, own --Map()--> lent by another process, and read-only here --Own()--> own, zeros
//   own, lent by another --Release()--> none --Own()--> own, zeros
//
// Memory that another process lends stays there when that process ends, until nobody maps it. Not thread-safe, except
// own_bytes() and mapped_bytes(); the bytes are for the user to guard.
class SharedBaseMemory {
 public:
  static constexpr int64_t kPageBytes = 4096;
  // Whether the base has memory of its own from the start, and after each Restore(), or gets it by Own() or Map() alone.
  enum class Base : uint8_t { kAlways, kOnDemand };

  struct Sizes {
    int64_t base = 0;   // of the base, with which each range begins: a multiple of the page
    int64_t range = 0;  // of one range
  };
  // Throws std::bad_alloc if addresses or memory do not suffice.
  SharedBaseMemory(int32_t ranges, const Sizes& sizes, Base base = Base::kAlways);
  ~SharedBaseMemory();
  SharedBaseMemory(const SharedBaseMemory&) = delete;
  SharedBaseMemory& operator=(const SharedBaseMemory&) = delete;

  char* range(int32_t index) const { return ranges_[static_cast<size_t>(index)]; }
  // Memory of this process's own: the base once, and the rest of each range that has it.
  int64_t own_bytes() const;
  // Memory of the base that another process lends.
  int64_t mapped_bytes() const { return base_state_ == BaseState::kMapped ? sizes_.base : 0; }

  // Gives memory back to the system: all of it, or all but the base and the rest of the range `kept`. What is given back
  // reads as zeros after Restore(); nobody may read or write it before. Each does nothing if it is done. Not after
  // Lend().
  absl::Status Release(std::optional<int32_t> kept);
  // RESOURCE_EXHAUSTED reason OUT_OF_MEMORY.
  absl::Status Restore();

  // Makes the base immutable and returns it for other processes, which can map it read-only (ipc::BaseLender). Calls
  // after the first return the same. Precondition: the base is this process's own. INTERNAL reason SYSTEM_ERROR.
  absl::StatusOr<SharedMemory> Lend();
  bool lent() const { return lent_ != nullptr; }
  // Makes `memory` the base of all ranges, read-only, and gives back this process's own. FAILED_PRECONDITION reason
  // BASE_UNMAPPABLE, with nothing changed, if it is not host memory of the base's size that nobody can write or shrink.
  // INTERNAL reason SYSTEM_ERROR: there is no base then.
  absl::Status Map(LentMemory memory);
  // Makes sure that the base is memory of this process's own, which can be written. RESOURCE_EXHAUSTED reason
  // OUT_OF_MEMORY.
  absl::Status Own();

 private:
  enum class BaseState : uint8_t { kNone, kOwn, kMapped };

  absl::Status MapBase(int descriptor, int protection);
  absl::Status DropOwn();

  const Sizes sizes_;
  const int64_t rest_bytes_;  // of a range behind the base, rounded up to pages
  const Base base_;
  FileDescriptor own_;         // anonymous memory with a descriptor, so that it can be mapped several times
  std::vector<char*> ranges_;  // by index
  std::atomic<BaseState> base_state_ = BaseState::kNone;
  std::atomic<int32_t> ranges_with_rest_ = 0;
  std::vector<bool> has_rest_;  // by range
  SharedMemory lent_;           // null before Lend()
};

}  // namespace syncopate::synchronizer
