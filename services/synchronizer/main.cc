// syncopate-synchronizer CONFIG [section.key=value ...]: tracks which members are alive and which versions exist, and
// runs every weight sync.

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "base/log.h"
#include "base/uuid.h"
#include "services/config/duration.h"
#include "services/daemon/daemon.h"
#include "services/synchronizer/synchronizer_service.h"
#include "synchronizer/loop/completion_linger.h"

namespace syncopate::synchronizerd {
namespace {

constexpr absl::Duration kGrace = absl::Milliseconds(500);  // for calls that are running when the daemon stops
constexpr absl::Duration kPoll = absl::Milliseconds(200);

synchronizer::ControlLoop::Options MakeLoopOptions(daemon::Daemon& daemon) {
  synchronizer::ControlLoop::Options options;
  const v1::SyncSection& sync = daemon.config().sync();
  const std::string& run_id = daemon.config().run().id();
  options.plane.run_id = run_id.empty() ? RandomUuid() : run_id;
  options.plane.membership.heartbeat = config::CheckedDuration(sync.heartbeat());
  options.plane.membership.suspect_after = config::CheckedDuration(sync.suspect_after());
  options.plane.membership.dead_after = config::CheckedDuration(sync.dead_after());
  options.plane.sync.transport = sync.transport();
  options.plane.sync.min_deadline = config::CheckedDuration(sync.deadline());
  options.plane.sync.prepare_deadline = config::CheckedDuration(sync.prepare_deadline());
  // Above every attempt of an earlier incarnation, which has started fewer than one attempt a microsecond.
  options.plane.sync.first_attempt = static_cast<int64_t>(Clock::Real()->UnixSeconds() * 1e6);
  options.state_dir = daemon.Path("state/synchronizer");
  options.on_round = [&health = daemon.health()] { health.Moved(); };
  return options;
}

synchronizer::CompletionLinger::Options MakeLingerOptions(const v1::RunConfig& config) {
  const absl::Duration shortest = config::CheckedDuration(config.sync().dead_after());
  return {.shortest = shortest, .longest = shortest + config::CheckedDuration(config.run().grace())};
}

// Returns when the process is asked to stop, or, with the flag, when the run is complete and all members know.
void AwaitEnd(daemon::Daemon& daemon, const SynchronizerServiceImpl& service) {
  synchronizer::CompletionLinger linger(MakeLingerOptions(daemon.config()), service.progress().completed);
  while (!daemon.StopRequested(kPoll)) {
    const SynchronizerServiceImpl::Progress progress = service.progress();
    const bool may_end = linger.MayEnd(progress.completed, progress.members, Clock::Real()->Now());
    if (!may_end || !daemon.exit_on_completion()) continue;
    daemon.BeginStop("the run is complete");
    return;
  }
}

absl::Status RunSynchronizer(daemon::Daemon& daemon) {
  std::atomic<bool> failed = false;
  telemetry::SyncMetrics metrics(*daemon.registry());
  SynchronizerServiceImpl::Options options;
  options.loop = MakeLoopOptions(daemon);
  options.security = daemon.security();
  options.metrics = &metrics;
  options.events = daemon.events();
  options.on_failed = [&failed](const absl::Status&) {
    failed = true;
    ::kill(::getpid(), SIGTERM);  // ends the wait below
  };
  SYNCOPATE_ASSIGN_OR_RETURN(auto service, SynchronizerServiceImpl::Start(std::move(options)));
  SYNCOPATE_RETURN_IF_ERROR(daemon.StartMetrics(daemon.config().metrics().synchronizer_listen()).status());
  const v1::SynchronizerSection& section = daemon.config().synchronizer();
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto server, daemon.StartServer(section.listen().empty() ? section.address() : section.listen(), {service.get()},
                                      {v1::SynchronizerService::service_full_name()}));
  SYNCOPATE_RETURN_IF_ERROR(daemon.Announce(server->address()));
  // Members reach this daemon only when it is ready, so readiness cannot wait for them: the state is read, the loop
  // runs.
  daemon.health().SetReady(absl::OkStatus());
  AwaitEnd(daemon, *service);
  service->EndStreams();
  server->Stop(kGrace);
  if (!failed) return absl::OkStatus();
  return Error(absl::StatusCode::kUnavailable, "STATE_NOT_WRITABLE",
               "the state under " + daemon.Path("state/synchronizer") + " could not be written; see the log");
}

}  // namespace
}  // namespace syncopate::synchronizerd

int main(int argc, char** argv) {
  return syncopate::daemon::DaemonMain(argc, argv, "synchronizer", &syncopate::synchronizerd::RunSynchronizer);
}
