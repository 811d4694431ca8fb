#pragma once

#include <algorithm>
#include <cstdint>

namespace syncopate::trainer {

// When a policy's allocator gives what it holds unused back to its device.
enum class EmptyCache : uint8_t { kAlways, kOnPressure, kNever };

// Whether an allocator that caches is emptied after an update or a pass. Under kOnPressure: once it holds more than 1.1
// times what was in use at once at any time before, so that pieces that fit nothing add up to a tenth at most; a device
// whose steps truly need more is left alone. Pure.
class CacheRule {
 public:
  explicit CacheRule(EmptyCache when) : when_(when) {}

  // `reserved`: what it holds now; `peak`: the most that was in use at once, since any time before. 0: nobody knows.
  bool ShouldEmpty(int64_t reserved, int64_t peak) {
    need_ = std::max(need_, peak);
    if (when_ == EmptyCache::kOnPressure) return need_ > 0 && reserved > need_ + need_ / 10;
    return when_ == EmptyCache::kAlways;
  }

 private:
  const EmptyCache when_;
  int64_t need_ = 0;
};

}  // namespace syncopate::trainer
