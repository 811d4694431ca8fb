#include "bench/control/control_hosts.h"

#include <fstream>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/daemon/daemon_endpoints.h"
#include "base/status.h"
#include "bench/process/json_fields.h"

namespace syncopate::bench {
namespace {

constexpr absl::Duration kStartLimit = absl::Minutes(1);
constexpr absl::Duration kAskAgain = absl::Milliseconds(5);

absl::Status NotReady(const BenchChild& child) {
  return Error(absl::StatusCode::kDeadlineExceeded, "NOT_READY",
               absl::StrCat(child.name(), " does not get ready; its log ends with\n", child.LogTail()));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const auth::TransportSecurity>> LoadBenchSecurity(const BenchTls& tls,
                                                                                 const std::string& role) {
  return auth::TransportSecurity::Load({.role = role, .tls_cert = tls.cert, .tls_key = tls.key, .tls_ca = tls.ca});
}

absl::Status ControlHosts::StartSynchronizer() {
  const std::string run_dir = absl::StrCat(options_.work_dir, "/run");
  const std::string config = absl::StrCat(options_.work_dir, "/bench.yaml");
  std::ofstream(config) << "run: {name: bench}\n";
  auto listen = [](const std::string& address) { return address.empty() ? "127.0.0.1:0" : address; };
  std::vector<std::string> arguments = {
      config, absl::StrCat("run.dir=", run_dir), absl::StrCat("synchronizer.address=", listen(synchronizer_address_)),
      absl::StrCat("metrics.synchronizer_listen=", listen(synchronizer_metrics_)), "run.log_level=warning",
      // All members come from one address here.
      "run.connections_per_peer=100000", "run.connections=100000"};
  if (options_.tls.on()) {
    arguments.push_back(absl::StrCat("security.tls_cert=", options_.tls.cert));
    arguments.push_back(absl::StrCat("security.tls_key=", options_.tls.key));
    arguments.push_back(absl::StrCat("security.tls_ca=", options_.tls.ca));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(
      synchronizer_, BenchChild::Start({"synchronizer", absl::StrCat(options_.binary_dir, "/syncopate-synchronizer"),
                                        arguments, absl::StrCat(options_.work_dir, "/synchronizer.log")},
                                       &events_));
  const std::string endpoint_path = daemon::EndpointPath(run_dir, "synchronizer", 0);
  const absl::Time deadline = Clock::Real()->Now() + kStartLimit;
  while (Clock::Real()->Now() < deadline) {
    auto endpoint = daemon::ReadDaemonEndpoint(endpoint_path);
    if (endpoint.ok() && endpoint->pid == synchronizer_->pid()) {  // not the file of the synchronizer before
      synchronizer_address_ = endpoint->grpc;
      synchronizer_metrics_ = endpoint->metrics;
      return absl::OkStatus();
    }
    std::optional<BenchEvent> event = events_.Next(Clock::Real()->Now() + kAskAgain);
    if (event.has_value() && event->kind == "ended" && event->from == "synchronizer" &&
        event->when > synchronizer_->started()) {
      break;
    }
  }
  return NotReady(*synchronizer_);
}

absl::Status ControlHosts::StartData() {
  DataPeerOptions data;
  data.tls = options_.tls;
  data.folder = absl::StrCat(options_.work_dir, "/log");
  SYNCOPATE_ASSIGN_OR_RETURN(data_, BenchChild::Start({"data",
                                                       absl::StrCat(options_.binary_dir, "/syncopate-bench-data"),
                                                       {ToJsonText(data)},
                                                       absl::StrCat(options_.work_dir, "/data.log")},
                                                      &events_));
  const absl::Time deadline = Clock::Real()->Now() + kStartLimit;
  while (std::optional<BenchEvent> event = events_.Next(deadline)) {
    if (event->from != "data" || event->when < data_->started()) continue;
    if (event->kind == "ended") break;
    if (event->kind != "ready") continue;
    data_address_ = TextIn(event->body, "address");
    return absl::OkStatus();
  }
  return NotReady(*data_);
}

}  // namespace syncopate::bench
