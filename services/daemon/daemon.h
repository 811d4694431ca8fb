#pragma once

#include <prometheus/registry.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/daemon/command_line.h"
#include "base/daemon/exit_code.h"
#include "base/daemon/health.h"
#include "base/daemon/signals.h"
#include "base/daemon/stop_deadline.h"
#include "base/event_recorder.h"
#include "base/identity.h"
#include "base/serving.h"
#include "base/status.h"
#include "base/trajectory.h"
#include "services/auth/transport_security.h"
#include "services/rpc/server.h"
#include "services/telemetry/grpc_metrics.h"
#include "services/telemetry/responder.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::daemon {

// The version of this build, e.g. "0.1.0".
const char* BuildVersion();

// The common part of every daemon: configuration, log, signals, probes, metrics, server, and the file that says where
// the daemon listens. Owned by DaemonMain; used from the main thread, except registry(), events() and health().
class Daemon {
 public:
  const v1::RunConfig& config() const { return config_; }
  const std::string& role() const { return role_; }
  int64_t index() const { return index_; }
  // "rollouter-1", or rollouter.name if it is set; "rollouter-1-rank2" for a rank above 0.
  std::string name() const;
  const std::string& run_dir() const { return config_.run().dir(); }
  std::string Path(const std::string& name) const;  // `name` in the run directory
  const std::string& incarnation() const { return incarnation_; }
  // The secret that proves to peers that this process is that incarnation.
  const MemberSecret& secret() const { return secret_; }
  std::shared_ptr<prometheus::Registry> registry() const { return registry_; }

  // Whether this process ends by itself when the run is complete.
  bool exit_on_completion() const { return command_line_.exit_on_completion; }
  bool accept_reward_change() const { return command_line_.accept_reward_change; }
  // Whether this is a resume on trial: `syncopate run` started it with a configuration that is not the run's yet
  // (config::kNextConfigFile). Until the trial ends, a trainer changes nothing that the run has. Looks at the disk.
  bool IsOnTrial() const;

  // The answers to probes. The daemon's main calls Moved() and SetReady().
  Health& health() { return health_; }

  // This process's identity and the peers that it lets in; null: plaintext, and everybody.
  std::shared_ptr<const auth::TransportSecurity> security() const { return security_; }

  // The log of this process's events.
  EventRecorder* events() const { return events_.get(); }

  // The identity with which this process joins: for a rollouter one rank of its replica, otherwise the only rank.
  MemberId Member() const;

  // Serves /metrics (of the registry, process_* and `more`), /livez and /readyz at `listen` and returns the bound
  // address.
  absl::StatusOr<std::string> StartMetrics(const std::string& listen,
                                           std::vector<std::shared_ptr<const prometheus::Collectable>> more = {});
  // Serves `services` at `listen` (`names`: their full names, for metrics and health). If this role's health_listen is
  // set, serves health alone there too. Both answer with health() until this object is destroyed.
  absl::StatusOr<std::unique_ptr<rpc::Server>> StartServer(const std::string& listen,
                                                           const std::vector<grpc::Service*>& services,
                                                           const std::vector<std::string>& names);
  // Writes to <run.dir>/endpoints/ that the daemon is ready at `grpc_address`.
  absl::Status Announce(const std::string& grpc_address);

  // True once a signal has asked the process to end; waits up to `timeout` for one. The first time it calls BeginStop.
  // Each call also checks memory: call it regularly, as every main does, so that unused freed memory goes back to the
  // kernel.
  bool StopRequested(absl::Duration timeout);

  // Makes the daemon not ready. It must end within run.grace: if main has not returned by then, the process is ended
  // with the exit code of `why`, or with 1 if `why` is OK. Idempotent.
  void BeginStop(const std::string& what, const absl::Status& why = absl::OkStatus());

 private:
  friend int DaemonMain(int argc, char** argv, const std::string& role,
                        const std::function<absl::Status(Daemon&)>& body);
  Daemon(std::string role, CommandLine command_line, v1::RunConfig config, SignalInbox signals);
  absl::Status Prepare();
  std::string replica() const;
  std::string HealthListen() const;
  absl::Status StartHealthServer(const std::string& listen);
  // The exit code of a process that ends because of `status`.
  int ExitCodeFor(const absl::Status& status) const;
  void LookAtMemory();

  std::unique_ptr<StopDeadline> stop_deadline_;  // first: it runs until all other members are destroyed
  const std::string role_;
  const CommandLine command_line_;
  const v1::RunConfig config_;
  const int64_t index_;
  const int32_t rank_;  // a rollouter's rank; 0 for other roles
  const absl::Duration grace_;
  const MemberSecret secret_;
  const std::string incarnation_;
  SignalInbox signals_;
  FreedMemoryWatch freed_memory_;
  absl::Time next_memory_look_ = absl::InfinitePast();
  bool stop_requested_ = false;
  bool announced_ = false;
  Health health_;
  std::shared_ptr<const auth::TransportSecurity> security_;
  const std::shared_ptr<prometheus::Registry> registry_;
  std::unique_ptr<EventRecorder> events_;
  std::string metrics_address_;
  std::unique_ptr<telemetry::GrpcServerMetrics> grpc_metrics_;
  std::unique_ptr<telemetry::MetricsResponder> responder_;
  std::unique_ptr<rpc::Server> health_server_;
};

// The whole main function of a daemon: reads the command line (command_line.h) and the configuration, blocks signals,
// opens the log, runs `body` and turns its status into an exit code (exit_code.h); an error is printed with its remedy.
int DaemonMain(int argc, char** argv, const std::string& role, const std::function<absl::Status(Daemon&)>& body);

}  // namespace syncopate::daemon
