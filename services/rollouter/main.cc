// syncopate-rollouter CONFIG [section.key=value ...]: generates, scores and submits trajectories until it is told to
// stop. Needs nothing but the synchronizer's address; holds nothing that matters when it dies.

#include <algorithm>

#include "services/config/duration.h"
#include "services/config/model_options.h"
#include "services/config/run_config.h"
#include "services/config/run_model.h"
#include "services/daemon/daemon.h"
#include "services/rollouter/rollout_node.h"

namespace syncopate::rollouterd {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(200);

RolloutNode::Options NodeOptions(const daemon::Daemon& daemon, const model::ModelConfig& shape) {
  const v1::RunConfig& config = daemon.config();
  RolloutNode::Options options;
  options.engine = config::EngineOptionsOf(config, shape);
  options.member = daemon.Member();
  options.secret = daemon.secret();
  options.run_id = config.run().id();
  options.run_name = config.run().name();
  options.synchronizer_address = config.synchronizer().address();
  options.leases.max_groups = config::GroupsInFlight(config);
  options.leases.samples_per_group = static_cast<int32_t>(config.rollout().samples());
  options.heartbeat = config::CheckedDuration(config.sync().heartbeat());
  options.build = daemon::BuildVersion();
  options.lost_after = config::CheckedDuration(config.synchronizer().lost_after());
  // One publication behind is always allowed: that is what a weight sync is under way for.
  options.allowed_lag = std::max(config.staleness().max_staleness(), config.sync().every_steps());
  options.events = daemon.events();
  options.security = daemon.security();
  return options;
}

// Until somebody wants it to stop, it cannot go on, or with the flag, the run is complete.
void AwaitEnd(daemon::Daemon& daemon, const RolloutNode& node) {
  while (!daemon.StopRequested(kPoll) && node.CheckAlive().ok()) {
    if (node.Moves()) daemon.health().Moved();
    daemon.health().SetReady(node.CheckReady());
    if (daemon.exit_on_completion() && node.run_completed()) return;
  }
}

absl::Status RunRollouter(daemon::Daemon& daemon) {
  const v1::RunConfig& config = daemon.config();
  const absl::Duration grace = config::CheckedDuration(config.run().grace());
  SYNCOPATE_ASSIGN_OR_RETURN(const config::RunModel model, config::FindRunModel(config));
  RolloutNode::Options options = NodeOptions(daemon, model.shape);
  SYNCOPATE_ASSIGN_OR_RETURN(options.device, OpenRolloutDevice(config, model.shape, daemon.security()));
  SYNCOPATE_ASSIGN_OR_RETURN(auto node, RolloutNode::Create(options, *daemon.registry()));
  SYNCOPATE_ASSIGN_OR_RETURN(std::string metrics_address,
                             daemon.StartMetrics(config.metrics().rollouter_listen(), {node->metrics()}));
  SYNCOPATE_ASSIGN_OR_RETURN(auto server, daemon.StartServer(config.rollouter().listen(), {node->service()},
                                                             {v1::RolloutService::service_full_name()}));
  const std::string& advertise = config.rollouter().advertise();
  SYNCOPATE_RETURN_IF_ERROR(node->Join(advertise.empty() ? server->address() : advertise, metrics_address));
  SYNCOPATE_RETURN_IF_ERROR(daemon.Announce(server->address()));

  AwaitEnd(daemon, *node);
  const absl::Status why = node->CheckAlive();
  daemon.BeginStop(why.ok() ? "the run is complete" : std::string(why.message()), why);
  node->Leave(grace);
  server->Stop(absl::ZeroDuration());
  return why;
}

}  // namespace
}  // namespace syncopate::rollouterd

int main(int argc, char** argv) {
  return syncopate::daemon::DaemonMain(argc, argv, "rollouter", syncopate::rollouterd::RunRollouter);
}
