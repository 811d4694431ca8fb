#pragma once

#include <string>
#include <vector>

#include "syncopate/v1/config.pb.h"
#include "tools/run/supervision.h"

namespace syncopate::run {

// The command line and environment of one daemon of a local run. Pure.
struct Launch {
  std::string binary;                         // "<binary_dir>/syncopate-rollouter", or a shell for the worker
  std::vector<std::string> arguments;         // CONFIG and overrides
  std::string log;                            // file of its standard output and error; empty: this process's
  std::vector<std::string> environment = {};  // NAME=value, besides this process's environment
};

// `synchronizer` is the address on which the synchronizer listens, "" before its first start; every daemon gets it, and
// a restarted synchronizer must listen there. With fixed ports, rollouter i gets the configured port plus i. `digest`
// is that of the worker of users' Python, "" before its first start or without one; trainer and rollouters get it.
// `rank0` is the address on which rank 0 of the trainer, or of that rollouter, listens for its other ranks. `on_trial`:
// the configuration is still NextConfigPath.
Launch PlanLaunch(const v1::RunConfig& config, const std::string& binary_dir, const std::string& run_dir,
                  const ChildId& child, const std::string& synchronizer, const std::string& digest = "",
                  const std::string& rank0 = "", bool accept_reward_change = false, bool on_trial = false);

// The file in which worker `index` of users' Python announces that it is ready: <run.dir>/environment.json, and
// environment-I.json of further ones; PATH.json beside its socket PATH if that is in another folder, as a worker of another
// user may not write to the run directory.
std::string EnvironmentAnnouncement(const v1::RunConfig& config, const std::string& run_dir, int64_t index = 0);

// <run.dir>/config.resolved.yaml, and config.next.yaml, the name while a resume is on trial.
std::string ResolvedConfigPath(const std::string& run_dir);
std::string NextConfigPath(const std::string& run_dir);

}  // namespace syncopate::run
