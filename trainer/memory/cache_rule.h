#pragma once

#include <algorithm>
#include <cstdint>

namespace syncopate::trainer {

// When a policy's allocator returns its unused blocks to the device.
enum class EmptyCache : uint8_t { kAlways, kOnPressure, kNever };

// How much memory a caching allocator may reserve beyond what is in use. Under kOnPressure the aim is at most a tenth
// more than was in use at once at any time before:
//   after an update or a pass  the allocator is emptied if it has reserved more.
//   before a micro-batch       once the allocator has reserved more than that, freed blocks do not fit what comes next. From
//                              then on it is emptied before each micro-batch if more than the tenth lies in freed blocks, as
//                              a micro-batch whose sizes fit none of them takes all of its memory beside them.
// So one micro-batch may exceed the aim, the first that shows that blocks do not fit. A device whose steps truly need
// more is left alone. Pure.
class CacheRule {
 public:
  explicit CacheRule(EmptyCache when) : when_(when) {}

  // Whether the allocator is emptied after an update or a pass. `reserved`: bytes that it has reserved now; `peak`: the
  // most bytes that were in use at once, since any time before. A peak of 0 is unknown.
  bool ShouldEmpty(int64_t reserved, int64_t peak) {
    Look(reserved, peak);
    return when_ == EmptyCache::kOnPressure ? Exceeds(reserved) : when_ == EmptyCache::kAlways;
  }

  // Whether the allocator is emptied before a micro-batch. `in_use`: bytes of `reserved` that are in use now.
  bool ShouldEmptyBefore(int64_t reserved, int64_t in_use, int64_t peak) {
    if (when_ != EmptyCache::kOnPressure) return false;
    Look(reserved, peak);
    return misfits_ && reserved - in_use > need_ / 10;
  }

 private:
  bool Exceeds(int64_t reserved) const { return need_ > 0 && reserved > need_ + need_ / 10; }
  void Look(int64_t reserved, int64_t peak) {
    need_ = std::max(need_, peak);
    misfits_ |= Exceeds(reserved);
  }

  const EmptyCache when_;
  int64_t need_ = 0;
  bool misfits_ = false;  // freed blocks have been seen to fit nothing
};

}  // namespace syncopate::trainer
