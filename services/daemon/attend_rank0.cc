#include "services/daemon/attend_rank0.h"

#include <chrono>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace syncopate::daemon {
namespace {
constexpr absl::Duration kHeartbeatEvery = absl::Seconds(1);
constexpr absl::Duration kTick = absl::Milliseconds(100);
}  // namespace

absl::Status AttendRank0(Daemon* daemon, rpc::Attending* attending, const std::string& rank0,
                         const std::function<absl::Status()>& run) {
  const absl::Status starting =
      Error(absl::StatusCode::kUnavailable, "STARTING", absl::StrCat("waits for ", rank0, " and the other ranks"));
  std::future<absl::Status> running = std::async(std::launch::async, run);
  absl::Time next_heartbeat = Clock::Real()->Now();
  while (running.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    daemon->health().Moved();
    daemon->health().SetReady(attending->ready() ? absl::OkStatus() : starting);
    if (const absl::Time now = Clock::Real()->Now(); now >= next_heartbeat) {
      next_heartbeat = now + kHeartbeatEvery;
      attending->SendHeartbeat();
    }
    // Before the ranks have met, only this thread can end the wait.
    if (daemon->StopRequested(kTick) && !attending->ready()) attending->Stop();
    running.wait_for(absl::ToChronoMilliseconds(kTick));
  }
  return running.get();
}

}  // namespace syncopate::daemon
