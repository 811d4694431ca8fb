#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/philox.h"

namespace syncopate {

// True if a retry is useless, because the peer would give the same answer again. Refused credentials do not count: they
// are renewed.
inline bool IsRefusal(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status);
}

// How long to wait before the next try: doubles from `min` to `max`, times a random factor in [0.5, 1), so that the
// clients of a restarted server do not all return at once. Not thread-safe.
class Backoff {
 public:
  Backoff(absl::Duration min, absl::Duration max, uint64_t seed) : min_(min), max_(max), seed_(seed) {}

  absl::Duration Next() {
    absl::Duration ceiling =
        std::min(max_, min_ * static_cast<double>(uint64_t{1} << std::min<uint64_t>(failures_, 30)));
    ++failures_;
    return ceiling * (0.5 + 0.5 * PhiloxUniform(seed_, draws_++));
  }
  void Reset() { failures_ = 0; }

 private:
  const absl::Duration min_, max_;
  const uint64_t seed_;
  uint64_t failures_ = 0;  // since the last success
  uint64_t draws_ = 0;
};

}  // namespace syncopate
