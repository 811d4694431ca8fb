#include "trainer/step/phase_clock.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/clock.h"

namespace syncopate::trainer {

void PhaseClock::Mark() {
  if (device_.is_cpu()) {
    times_.push_back(Clock::Real()->Now());
    return;
  }
  // With timing, which events have only in their backend's own default.
  events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  events_.back().record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

double PhaseClock::Seconds(size_t phase) const {
  if (device_.is_cpu()) return absl::ToDoubleSeconds(times_[phase + 1] - times_[phase]);
  return events_[phase].elapsedTime(events_[phase + 1]) / 1e3;
}

}  // namespace syncopate::trainer
