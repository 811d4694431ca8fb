#include "services/rpc/timer.h"

#include <utility>

#include "absl/time/clock.h"

namespace syncopate::rpc {

void Timer::Set(absl::Duration delay, std::function<void()> fire) {
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(absl::ToChronoTime(absl::Now() + delay), [fire = std::move(fire)](bool fired) {
    if (fired) fire();
  });
}

}  // namespace syncopate::rpc
