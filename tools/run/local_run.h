#pragma once

#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "model/device.h"
#include "syncopate/v1/config.pb.h"
#include "tools/run/display.h"

namespace syncopate::run {

// Exit codes of `syncopate run`, besides kConfigExitCode: configuration or run directory refused, nothing started.
inline constexpr int kRunFailedExitCode = 1;
inline constexpr int kRunLostPeerExitCode = 4;       // same as a daemon's: a fresh start may succeed, e.g. --resume
inline constexpr int kRunInterruptedExitCode = 130;  // ended in order after SIGINT, SIGTERM or SIGHUP

struct LocalRunOptions {
  v1::RunConfig config;               // checked
  std::string program = "syncopate";  // the name with which this program was started
  std::string binary_dir;             // the folder of syncopate-trainer and the others
  RunOutput output = RunOutput::kPlain;
  bool accept_reward_change = false;              // a resume may change the run's reward
  std::optional<std::string> web = std::nullopt;  // address of the run's page: LivePage::Start
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  std::function<model::Hardware()> look_at_hardware;  // called only if a GPU is requested
};

// Runs a synchronizer, a trainer and run.rollouters rollouters as child processes until the run ends (supervision.h),
// and returns the exit code. No child is left when it returns, nor when this process is killed. Blocks; call it from
// the main thread, before other threads are started.
int RunLocally(LocalRunOptions options);

}  // namespace syncopate::run
