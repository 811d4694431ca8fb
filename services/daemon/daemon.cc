#include "services/daemon/daemon.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/daemon/daemon_endpoints.h"
#include "base/file_descriptor.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/reasons.h"
#include "base/serving.h"
#include "base/uuid.h"
#include "services/auth/audit.h"
#include "services/config/duration.h"
#include "services/config/ranks.h"
#include "services/config/run_config.h"
#include "services/telemetry/certificate_metrics.h"
#include "services/telemetry/metric_names.h"
#include "services/telemetry/process_metrics.h"
#include "services/wire/codec.h"

namespace syncopate::daemon {
namespace {

constexpr int64_t kMaxHealthCheckBytes = 4096;
constexpr absl::Duration kMemoryLookEvery = absl::Seconds(1);

// Trainers and rollouters get large messages: a group of trajectories, or a long prompt. The synchronizer's are small.
int64_t MaxMessageBytes(const std::string& role) {
  return role == "synchronizer" ? rpc::Server::Options().max_receive_bytes : int64_t{64} << 20;
}

Severity GetSeverity(const std::string& level) {
  if (level == "debug") return Severity::kDebug;
  if (level == "warning") return Severity::kWarning;
  return level == "error" ? Severity::kError : Severity::kInfo;
}

// Ends the process without waiting for its threads, which may be stuck: _exit() runs no destructor.
[[noreturn]] void EndAtOnce(const std::string& role, absl::Duration grace, int code) {
  SYNCOPATE_LOG(kError, "the orderly stop did not end within run.grace %s; the process ends with code %d",
                absl::FormatDuration(grace), code);
  std::fprintf(stderr, "syncopate-%s: not stopped within run.grace; what was acknowledged or saved is safe\n",
               role.c_str());
  ::_exit(code);
}

void PrintFailure(const std::string& role, const absl::Status& status) {
  const std::string message(status.message());
  const std::string reason = ErrorReason(status);
  std::fprintf(stderr, "syncopate-%s: %s%s\n", role.c_str(), message.c_str(),
               reason.empty() ? "" : absl::StrCat(" (", reason, ")").c_str());
}

int Fail(const std::string& role, const absl::Status& status) {
  PrintFailure(role, status);
  return ToExitCode(status);
}

rpc::HealthFeed::Source GetHealth(const Health& health, const std::vector<std::string>& services) {
  return {.live = [&health] { return health.Live().ok(); },
          .ready = [&health] { return health.Ready().ok(); },
          .services = services};
}

}  // namespace

const char* BuildVersion() { return SYNCOPATE_VERSION; }

Daemon::Daemon(std::string role, CommandLine command_line, v1::RunConfig config, SignalInbox signals)
    : role_(std::move(role)),
      command_line_(std::move(command_line)),
      config_(std::move(config)),
      index_(role_ == "rollouter" ? config_.rollouter().index()
             : role_ == "trainer" ? config::GetTrainerRank(config_.trainer()).value_or(0)
                                  : 0),
      rank_(role_ == "rollouter" ? config::GetRolloutRank(config_).value_or(0) : 0),
      grace_(config::CheckedDuration(config_.run().grace())),
      secret_(MemberSecret::Draw()),
      incarnation_(secret_.incarnation()),
      signals_(std::move(signals)),
      freed_memory_(UsableCores() * MaxMessageBytes(role_)),
      registry_(std::make_shared<prometheus::Registry>()) {}

std::string Daemon::name() const { return rank_ == 0 ? replica() : absl::StrCat(replica(), "-rank", rank_); }

std::string Daemon::replica() const {
  const bool named = role_ == "rollouter" && !config_.rollouter().name().empty();
  return named ? config_.rollouter().name() : absl::StrCat(role_, "-", index_);
}

std::string Daemon::Path(const std::string& name) const { return JoinPath(run_dir(), name); }

MemberId Daemon::Member() const {
  const auto world = role_ == "rollouter" ? static_cast<int32_t>(config_.rollout().tensor_parallel()) : 1;
  return {role_, replica(), rank_, world, incarnation_};
}

bool Daemon::IsOnTrial() const {
  // The supervisor renames the file when the trial is over, so the name and the existence of the file tell.
  const std::string& path = command_line_.config;
  return std::filesystem::path(path).filename() == config::kNextConfigFile && FileSystem::Real()->FileBytes(path).ok();
}

absl::Status Daemon::Prepare() {
  if (run_dir().empty()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_CONFIG",
                 "run.dir is not set: give every daemon of a run the same folder, e.g. run.dir=runs/first");
  }
  // The folder and the log come first, so that every later error of the start is recorded.
  SYNCOPATE_RETURN_IF_ERROR(FileSystem::Real()->CreateDirs(run_dir()));
  SYNCOPATE_RETURN_IF_ERROR(InitLogging({.role = name(), .minimum = GetSeverity(config_.run().log_level())}));
  SYNCOPATE_ASSIGN_OR_RETURN(events_, EventRecorder::Open(FileSystem::Real(), run_dir(), name(), wire::EncodeEvent));
  telemetry::PublishBuildInfo(*registry_, BuildVersion(), role_);
  SYNCOPATE_ASSIGN_OR_RETURN(security_, auth::TransportSecurity::Load(config_.security(), role_));
  SYNCOPATE_LOG(kInfo, "syncopate-%s %s starts in %s as %s", role_, BuildVersion(), run_dir(), incarnation_);
  return absl::OkStatus();
}

absl::StatusOr<std::string> Daemon::StartMetrics(const std::string& listen,
                                                 std::vector<std::shared_ptr<const prometheus::Collectable>> more) {
  more.push_back(registry_);
  more.push_back(std::make_shared<telemetry::ProcessCollector>());
  if (security_ != nullptr) more.push_back(std::make_shared<telemetry::CertificateCollector>(role_, security_));
  // /metrics shows no secret and accepts no command, so with TLS on the gRPC port it may bind any address.
  const bool encrypted = security_ != nullptr && security_->encrypted();
  telemetry::MetricsResponder::Options options{.address = listen,
                                               .insecure_bind = config_.run().insecure_bind() || encrypted};
  options.probes = {{"/livez", [this] { return health_.Live(); }}, {"/readyz", [this] { return health_.Ready(); }}};
  SYNCOPATE_ASSIGN_OR_RETURN(responder_, telemetry::MetricsResponder::Start(options, std::move(more)));
  return metrics_address_ = responder_->address();
}

absl::StatusOr<std::unique_ptr<rpc::Server>> Daemon::StartServer(const std::string& listen,
                                                                 const std::vector<grpc::Service*>& services,
                                                                 const std::vector<std::string>& names) {
  grpc_metrics_ = std::make_unique<telemetry::GrpcServerMetrics>(*registry_, names);
  rpc::Server::Options options;
  options.address = listen;
  options.insecure_bind = config_.run().insecure_bind();
  options.max_receive_bytes = MaxMessageBytes(role_);
  options.connections = {static_cast<int>(config_.run().connections()),
                         static_cast<int>(config_.run().connections_per_peer())};
  options.security = security_;
  options.interceptors = {grpc_metrics_->InterceptorFactory(), auth::AuditInterceptors(security_)};
  options.health = GetHealth(health_, names);
  // Kubernetes' gRPC probes cannot show a certificate, so they need a port of their own.
  SYNCOPATE_RETURN_IF_ERROR(StartHealthServer(HealthListen()));
  return rpc::Server::Start(options, services);
}

std::string Daemon::HealthListen() const {
  if (role_ == "synchronizer") return config_.synchronizer().health_listen();
  return role_ == "trainer" ? config_.trainer().health_listen() : config_.rollouter().health_listen();
}

absl::Status Daemon::StartHealthServer(const std::string& listen) {
  if (listen.empty()) return absl::OkStatus();
  rpc::Server::Options options;
  options.address = listen;
  // This port authenticates no client, so it accepts only small messages and serves nothing but health.
  options.max_receive_bytes = kMaxHealthCheckBytes;
  options.health = GetHealth(health_, {});
  options.health_only = true;
  SYNCOPATE_ASSIGN_OR_RETURN(health_server_, rpc::Server::Start(options, {}));
  SYNCOPATE_LOG(kInfo, "health checks alone, without TLS, at %s", health_server_->address());
  return absl::OkStatus();
}

int Daemon::ExitCodeFor(const absl::Status& status) const {
  // A start that fails on a full disk has changed nothing; a restart succeeds as soon as there is room.
  const bool no_room = !announced_ && ErrorReason(status) == reason::kNoSpace;
  return no_room ? kExitNoSpace : ToExitCode(status);
}

absl::Status Daemon::Announce(const std::string& grpc_address) {
  SYNCOPATE_LOG(kInfo, "ready: gRPC at %s, metrics at http://%s/metrics", grpc_address, metrics_address_);
  // Written last: supervisors take this file as the sign that the daemon is ready.
  SYNCOPATE_RETURN_IF_ERROR(
      WriteDaemonEndpoint(run_dir(), {.role = role_,
                                      .index = index_,
                                      .grpc = grpc_address,
                                      .metrics = metrics_address_,
                                      .pid = static_cast<int64_t>(::getpid()),
                                      .name = name() == absl::StrCat(role_, "-", index_) ? "" : name()}));
  announced_ = true;
  return absl::OkStatus();
}

void Daemon::LookAtMemory() {
  // The allocator's statistics take its locks, so they are read rarely.
  const absl::Time now = Clock::Real()->Now();
  if (now < next_memory_look_) return;
  next_memory_look_ = now + kMemoryLookEvery;
  const int64_t freed = FreedBytes();
  if (!freed_memory_.ShouldGiveBack(freed)) return;
  GiveFreedMemoryBack();
  SYNCOPATE_LOG(kDebug, "gave unused memory back to the kernel: %d MiB were free, %d MiB are", freed >> 20,
                FreedBytes() >> 20);
}

bool Daemon::StopRequested(absl::Duration timeout) {
  LookAtMemory();
  if (stop_requested_ || !signals_.Wait(timeout).interrupt) return stop_requested_;
  stop_requested_ = true;
  BeginStop("asked to by a signal");
  return true;
}

void Daemon::BeginStop(const std::string& what, const absl::Status& why) {
  health_.BeginStop(what);
  if (stop_deadline_ != nullptr) return;  // run.grace counts from the first reason to stop
  SYNCOPATE_LOG(kInfo, "stopping: %s", what);
  // If the process must be ended by force, it ends with the exit code of `why`.
  const int code = why.ok() ? kExitFailed : ToExitCode(why);
  stop_deadline_ =
      std::make_unique<StopDeadline>(grace_, [role = role_, grace = grace_, code] { EndAtOnce(role, grace, code); });
}

int DaemonMain(int argc, char** argv, const std::string& role, const std::function<absl::Status(Daemon&)>& body) {
  absl::StatusOr<CommandLine> line = ParseCommandLine(std::vector<std::string>(argv + 1, argv + argc));
  if (!line.ok()) {
    std::fputs(MakeUsage(role).c_str(), stderr);
    return Fail(role, line.status());
  }
  if (line->help) {
    std::fputs(MakeUsage(role).c_str(), stdout);
    return kExitDone;
  }
  absl::StatusOr<v1::RunConfig> config = config::LoadRunConfig(line->config, line->overrides);
  if (!config.ok()) return Fail(role, config.status());
  // Before any thread starts: signals and limits belong to the whole process.
  PrepareToServe();
  RaiseDescriptorLimit();
  absl::StatusOr<SignalInbox> signals = SignalInbox::Open();
  if (!signals.ok()) return Fail(role, signals.status());
  Daemon daemon(role, *std::move(line), *std::move(config), *std::move(signals));
  absl::Status status = daemon.Prepare();
  if (status.ok()) status = body(daemon);
  if (!status.ok()) {
    PrintFailure(role, status);
    if (const int code = daemon.ExitCodeFor(status); code != kExitDone) return code;
  }
  SYNCOPATE_LOG(kInfo, "%s", daemon.stop_requested_ ? "stopped" : "done");
  return daemon.stop_requested_ ? daemon.command_line_.interrupted_code : kExitDone;
}

}  // namespace syncopate::daemon
