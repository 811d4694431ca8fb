#pragma once

#include <string>
#include <vector>

#include "syncopate/v1/config.pb.h"
#include "tools/run/supervision.h"

namespace syncopate::run {

// What one daemon of a local run is started with. Pure.
struct Launch {
  std::string binary;                         // "<binary_dir>/syncopate-rollouter", or a shell for the worker
  std::vector<std::string> arguments;         // CONFIG and overrides
  std::string log;                            // where its standard output and error go; empty: as this process's
  std::vector<std::string> environment = {};  // NAME=value, beside what this process has
};

// `synchronizer` is the address at which the synchronizer was found listening, "" before its first start. Every daemon
// is told it, and a synchronizer that is started again must listen there. Rollouter i of a run with fixed ports gets
// the i-th port from the configured one. `digest` is that of the worker of users' Python, "" before its first start or
// if there is none: trainer and rollouters are told it. `rank0` is where rank 0 of the trainer, or of that rollouter,
// listens for its others. `on_trial`: the configuration is still NextConfigPath.
Launch PlanLaunch(const v1::RunConfig& config, const std::string& binary_dir, const std::string& run_dir,
                  const ChildId& child, const std::string& synchronizer, const std::string& digest = "",
                  const std::string& rank0 = "", bool accept_reward_change = false, bool on_trial = false);

// Where the worker of users' Python says that it is ready: <run.dir>/environment.json
std::string EnvironmentAnnouncement(const std::string& run_dir);

// <run.dir>/config.resolved.yaml, and config.next.yaml, which a resume is on trial under.
std::string ResolvedConfigPath(const std::string& run_dir);
std::string NextConfigPath(const std::string& run_dir);

}  // namespace syncopate::run
