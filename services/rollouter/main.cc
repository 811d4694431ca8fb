// syncopate-rollouter CONFIG [section.key=value ...]: generates, scores and submits trajectories until it is told to
// stop. Needs nothing but the synchronizer's address; holds nothing that matters when it dies.

#include "services/config/duration.h"
#include "services/config/run_config.h"
#include "services/daemon/daemon.h"
#include "services/options/model_options.h"
#include "services/rollouter/rollout_node.h"

namespace syncopate::services {
namespace {

RolloutNode::Options NodeOptions(const Daemon& daemon) {
  const v1::RunConfig& config = daemon.config();
  RolloutNode::Options options;
  options.engine = EngineOptionsOf(config);
  options.member = daemon.Member();
  options.run_id = config.run().id();
  options.run_name = config.run().name();
  options.synchronizer_address = config.synchronizer().address();
  options.leases.max_groups = GroupsInFlight(config);
  options.leases.samples_per_group = static_cast<int32_t>(config.rollout().samples());
  options.heartbeat = CheckedDuration(config.sync().heartbeat());
  options.build = BuildVersion();
  options.events = daemon.events();
  return options;
}

absl::Status RunRollouter(Daemon& daemon) {
  const v1::RunConfig& config = daemon.config();
  const absl::Duration grace = CheckedDuration(config.run().grace());
  RolloutNode::Options options = NodeOptions(daemon);
  SYNCOPATE_ASSIGN_OR_RETURN(options.device, OpenRolloutDevice(config));
  SYNCOPATE_ASSIGN_OR_RETURN(auto node, RolloutNode::Create(options, *daemon.registry()));
  SYNCOPATE_ASSIGN_OR_RETURN(std::string metrics_address,
                             daemon.StartMetrics(config.metrics().rollouter_listen(), {node->metrics()}));
  SYNCOPATE_ASSIGN_OR_RETURN(auto server, daemon.StartServer(config.rollouter().listen(), {node->service()},
                                                             {v1::RolloutService::service_full_name()}));
  const std::string& advertise = config.rollouter().advertise();
  SYNCOPATE_RETURN_IF_ERROR(node->Join(advertise.empty() ? server->address() : advertise, metrics_address));
  SYNCOPATE_RETURN_IF_ERROR(daemon.Announce(server->address()));

  while (!daemon.StopRequested(absl::Milliseconds(200)) && node->CheckAlive().ok()) {
  }
  server->SetServing(false);
  node->Leave(grace);
  server->Stop(absl::ZeroDuration());
  return node->CheckAlive();
}

}  // namespace
}  // namespace syncopate::services

int main(int argc, char** argv) {
  return syncopate::services::DaemonMain(argc, argv, "rollouter", syncopate::services::RunRollouter);
}
