#include "services/daemon/daemon.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/uuid.h"
#include "services/config/run_config.h"
#include "services/endpoints/daemon_endpoints.h"
#include "services/metrics/metric_names.h"
#include "services/metrics/process_metrics.h"

namespace syncopate::services {
namespace {

Severity SeverityOf(const std::string& level) {
  if (level == "debug") return Severity::kDebug;
  if (level == "warning") return Severity::kWarning;
  return level == "error" ? Severity::kError : Severity::kInfo;
}

int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitDone;
  const std::string reason = ErrorReason(status);
  const bool refused = reason == "BAD_CONFIG" || reason == "NO_CUDA";  // trying again would not help
  return reason == "FENCED" ? kExitFenced : refused ? kExitBadConfig : kExitFailed;
}

int Usage(const std::string& role) {
  std::fprintf(stderr,
               "usage: syncopate-%s CONFIG [section.key=value ...]\n"
               "`syncopate config show` prints every key with its default.\n",
               role.c_str());
  return kExitBadConfig;
}

int Fail(const std::string& role, const absl::Status& status) {
  const std::string message(status.message());
  const std::string reason = ErrorReason(status);
  std::fprintf(stderr, "syncopate-%s: %s%s\n", role.c_str(), message.c_str(),
               reason.empty() ? "" : absl::StrCat(" (", reason, ")").c_str());
  return ExitCodeOf(status);
}

}  // namespace

const char* BuildVersion() { return SYNCOPATE_VERSION; }

Daemon::Daemon(std::string role, v1::RunConfig config, SignalInbox signals)
    : role_(std::move(role)),
      config_(std::move(config)),
      index_(role_ == "rollouter" ? config_.rollouter().index() : 0),
      incarnation_(RandomUuid()),
      signals_(std::move(signals)),
      registry_(std::make_shared<prometheus::Registry>()) {}

std::string Daemon::name() const { return absl::StrCat(role_, "-", index_); }

std::string Daemon::Path(const std::string& name) const { return JoinPath(run_dir(), name); }

MemberId Daemon::Member() const { return {role_, name(), /*rank=*/0, /*world=*/1, incarnation_}; }

absl::Status Daemon::Prepare() {
  if (run_dir().empty()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_CONFIG",
                 "run.dir is not set: give every daemon of a run the same folder, e.g. run.dir=runs/first");
  }
  SYNCOPATE_RETURN_IF_ERROR(FileSystem::Real()->CreateDirs(run_dir()));
  SYNCOPATE_RETURN_IF_ERROR(InitLogging({.role = name(), .minimum = SeverityOf(config_.run().log_level())}));
  SYNCOPATE_ASSIGN_OR_RETURN(events_, EventRecorder::Open(FileSystem::Real(), run_dir(), role_, index_));
  PublishBuildInfo(*registry_, BuildVersion(), role_);
  SYNCOPATE_LOG(kInfo, "syncopate-%s %s starts in %s as %s", role_, BuildVersion(), run_dir(), incarnation_);
  return absl::OkStatus();
}

absl::StatusOr<std::string> Daemon::StartMetrics(const std::string& listen,
                                                 std::vector<std::shared_ptr<const prometheus::Collectable>> more) {
  more.push_back(registry_);
  more.push_back(std::make_shared<ProcessCollector>());
  SYNCOPATE_ASSIGN_OR_RETURN(
      responder_, MetricsResponder::Start({.address = listen, .insecure_bind = config_.run().insecure_bind()},
                                          std::move(more)));
  return metrics_address_ = responder_->address();
}

absl::StatusOr<std::unique_ptr<Server>> Daemon::StartServer(const std::string& listen,
                                                            const std::vector<grpc::Service*>& services,
                                                            const std::vector<std::string>& names) {
  grpc_metrics_ = std::make_unique<GrpcServerMetrics>(*registry_, names);
  Server::Options options;
  options.address = listen;
  options.insecure_bind = config_.run().insecure_bind();
  options.max_receive_bytes = int64_t{64} << 20;  // a group of trajectories is one message
  options.interceptors = {grpc_metrics_->InterceptorFactory()};
  return Server::Start(options, services);
}

absl::Status Daemon::Announce(const std::string& grpc_address) const {
  SYNCOPATE_LOG(kInfo, "ready: gRPC at %s, metrics at http://%s/metrics", grpc_address, metrics_address_);
  return WriteDaemonEndpoint(run_dir(), {.role = role_,
                                         .index = index_,
                                         .grpc = grpc_address,
                                         .metrics = metrics_address_,
                                         .pid = static_cast<int64_t>(::getpid())});
}

bool Daemon::StopRequested(absl::Duration timeout) {
  if (!stop_requested_) stop_requested_ = signals_.Wait(timeout).interrupt;
  return stop_requested_;
}

int DaemonMain(int argc, char** argv, const std::string& role, const std::function<absl::Status(Daemon&)>& body) {
  if (argc < 2 || std::string(argv[1]).rfind("--", 0) == 0) return Usage(role);
  absl::StatusOr<v1::RunConfig> config = LoadRunConfig(argv[1], std::vector<std::string>(argv + 2, argv + argc));
  if (!config.ok()) {
    Fail(role, config.status());
    return kExitBadConfig;
  }
  absl::StatusOr<SignalInbox> signals = SignalInbox::Open();
  if (!signals.ok()) return Fail(role, signals.status());
  Daemon daemon(role, *std::move(config), *std::move(signals));
  absl::Status status = daemon.Prepare();
  if (status.ok()) status = body(daemon);
  if (!status.ok()) return Fail(role, status);
  SYNCOPATE_LOG(kInfo, "done");
  return kExitDone;
}

}  // namespace syncopate::services
