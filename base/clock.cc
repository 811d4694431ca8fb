#include "base/clock.h"

#include <chrono>

namespace syncopate {
namespace {

class RealClock final : public Clock {
 public:
  absl::Time Now() const override {
    auto since_start = std::chrono::steady_clock::now().time_since_epoch();
    return absl::UnixEpoch() + absl::FromChrono(since_start);
  }
  double UnixSeconds() const override {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  }
};

}  // namespace

const Clock* Clock::Real() {
  static const RealClock clock;
  return &clock;
}

}  // namespace syncopate
