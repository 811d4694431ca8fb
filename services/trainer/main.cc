// syncopate-trainer CONFIG [section.key=value ...]

#include "model/device.h"
#include "services/config/ranks.h"
#include "services/trainer/rank_follower.h"
#include "services/trainer/train_device.h"
#include "services/trainer/trainer_daemon.h"

int main(int argc, char** argv) {
  using syncopate::daemon::Daemon;
  using syncopate::trainerd::TrainerDaemon;
  syncopate::model::ReuseFreedTensors();
  return syncopate::daemon::DaemonMain(argc, argv, "trainer", [](Daemon& daemon) -> absl::Status {
    SYNCOPATE_ASSIGN_OR_RETURN(const int32_t rank, syncopate::config::GetTrainerRank(daemon.config().trainer()));
    if (rank == 0) SYNCOPATE_RETURN_IF_ERROR(TrainerDaemon::CheckConfig(daemon));
    SYNCOPATE_ASSIGN_OR_RETURN(auto model, syncopate::config::FindRunModel(daemon.config()));
    if (rank > 0) return syncopate::trainerd::FollowRank0(&daemon, std::move(model), rank);
    SYNCOPATE_ASSIGN_OR_RETURN(auto device,
                               syncopate::trainerd::OpenTrainDevice(daemon.config(), std::move(model), rank));
    SYNCOPATE_ASSIGN_OR_RETURN(auto trainer, TrainerDaemon::Start(&daemon, std::move(device)));
    return trainer->Run();
  });
}
