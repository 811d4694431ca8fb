#include "services/daemon/attend_rank0.h"

#include <chrono>
#include <future>

#include "absl/time/time.h"
#include "base/clock.h"

namespace syncopate::daemon {
namespace {
constexpr absl::Duration kHeartbeatEvery = absl::Seconds(1);
constexpr absl::Duration kTick = absl::Milliseconds(100);
}  // namespace

absl::Status AttendRank0(Daemon* daemon, const Attendant& attendant, const absl::Status& starting) {
  std::future<absl::Status> running = std::async(std::launch::async, attendant.run);
  absl::Time next_heartbeat = Clock::Real()->Now();
  while (running.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    daemon->health().Moved();
    daemon->health().SetReady(attendant.ready() ? absl::OkStatus() : starting);
    if (const absl::Time now = Clock::Real()->Now(); now >= next_heartbeat) {
      next_heartbeat = now + kHeartbeatEvery;
      attendant.send_heartbeat();
    }
    // Before the ranks have met nobody else would end this wait.
    if (daemon->StopRequested(kTick) && !attendant.ready()) attendant.stop();
    running.wait_for(absl::ToChronoMilliseconds(kTick));
  }
  return running.get();
}

}  // namespace syncopate::daemon
