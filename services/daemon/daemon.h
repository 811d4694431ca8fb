#pragma once

#include <prometheus/registry.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "base/trajectory.h"
#include "services/daemon/signals.h"
#include "services/events/event_recorder.h"
#include "services/metrics/grpc_metrics.h"
#include "services/metrics/responder.h"
#include "services/rpc/server.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::services {

// Exit codes of every daemon. 2: the configuration is wrong, do not start it again. 3: a newer process has taken over.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitBadConfig = 2;
inline constexpr int kExitFenced = 3;

// The version of this build, e.g. "0.1.0".
const char* BuildVersion();

// The frame of one daemon: configuration, log, signals, metrics, server, and the file that says where it listens. Owned
// by DaemonMain; used from the main thread, except registry().
class Daemon {
 public:
  const v1::RunConfig& config() const { return config_; }
  const std::string& role() const { return role_; }
  int64_t index() const { return index_; }
  std::string name() const;  // "rollouter-1"
  const std::string& run_dir() const { return config_.run().dir(); }
  std::string Path(const std::string& name) const;  // in the run directory
  const std::string& incarnation() const { return incarnation_; }
  std::shared_ptr<prometheus::Registry> registry() const { return registry_; }

  // Where this process records what happens in it.
  EventRecorder* events() const { return events_.get(); }

  // The identity that this process joins with, as the only rank of its replica.
  MemberId Member() const;

  // Serves /metrics at `listen` and returns the bound address: the registry's, process_* and those of `more`.
  absl::StatusOr<std::string> StartMetrics(const std::string& listen,
                                           std::vector<std::shared_ptr<const prometheus::Collectable>> more = {});
  // Serves `services` (full names in `names`, for their metrics) at `listen`.
  absl::StatusOr<std::unique_ptr<Server>> StartServer(const std::string& listen,
                                                      const std::vector<grpc::Service*>& services,
                                                      const std::vector<std::string>& names);
  // Says in <run.dir>/endpoints/ that the daemon is ready at `grpc_address`.
  absl::Status Announce(const std::string& grpc_address) const;

  // True once somebody wants the process to end; waits up to `timeout` for that.
  bool StopRequested(absl::Duration timeout);

 private:
  friend int DaemonMain(int argc, char** argv, const std::string& role,
                        const std::function<absl::Status(Daemon&)>& body);
  Daemon(std::string role, v1::RunConfig config, SignalInbox signals);
  absl::Status Prepare();

  const std::string role_;
  const v1::RunConfig config_;
  const int64_t index_;
  const std::string incarnation_;
  SignalInbox signals_;
  bool stop_requested_ = false;
  const std::shared_ptr<prometheus::Registry> registry_;
  std::unique_ptr<EventRecorder> events_;
  std::string metrics_address_;
  std::unique_ptr<GrpcServerMetrics> grpc_metrics_;
  std::unique_ptr<MetricsResponder> responder_;
};

// The whole of a daemon's main: `syncopate-<role> CONFIG [section.key=value ...]`. Reads the configuration, blocks
// signals, opens the log, runs `body` and turns its status into an exit code; an error is printed with its remedy.
int DaemonMain(int argc, char** argv, const std::string& role, const std::function<absl::Status(Daemon&)>& body);

}  // namespace syncopate::services
