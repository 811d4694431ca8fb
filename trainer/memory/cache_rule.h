#pragma once

#include <algorithm>
#include <cstdint>

namespace syncopate::trainer {

// When a policy's allocator gives what it holds unused back to its device.
enum class EmptyCache : uint8_t { kAlways, kOnPressure, kNever };

// How much an allocator that caches may hold beyond what is in use. Under kOnPressure at most a tenth more than was in use
// at once at any time before:
//   during a step  the allocator itself gives unused blocks back before it takes memory beyond Limit();
//   between steps  it is emptied if it holds more than the tenth all the same, as parts of blocks cannot be given back.
// A rule that looked between steps alone came too late: a step whose sizes fit nothing in the cache takes all of its memory
// anew, beside a cache that holds nearly a whole step's, and the device must have room for both. A device whose steps truly
// need more is left alone. Pure.
class CacheRule {
 public:
  explicit CacheRule(EmptyCache when) : when_(when) {}

  // Whether the allocator is emptied after an update or a pass. `reserved`: what it holds now; `peak`: the most that was in
  // use at once, since any time before. 0: nobody knows.
  bool ShouldEmpty(int64_t reserved, int64_t peak) {
    need_ = std::max(need_, peak);
    if (when_ == EmptyCache::kOnPressure) return need_ > 0 && reserved > need_ + need_ / 10;
    return when_ == EmptyCache::kAlways;
  }

  // Bytes, by what ShouldEmpty() was told; 0: none. Half of the tenth: the block that is taken when the limit is reached
  // comes on top.
  int64_t Limit() const { return when_ == EmptyCache::kOnPressure ? need_ + need_ / 20 : 0; }

 private:
  const EmptyCache when_;
  int64_t need_ = 0;
};

}  // namespace syncopate::trainer
