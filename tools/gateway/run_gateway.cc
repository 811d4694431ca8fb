#include "tools/gateway/run_gateway.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/daemon/daemon_endpoints.h"
#include "base/daemon/signals.h"
#include "base/host_port.h"
#include "base/log.h"
#include "base/status.h"
#include "services/auth/transport_security.h"
#include "services/config/run_config.h"
#include "services/gateway/gateway.h"
#include "services/rpc/channel.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"

namespace syncopate::gateway {
namespace {

constexpr absl::Duration kAskEvery = absl::Milliseconds(500);

using Security = std::shared_ptr<const auth::TransportSecurity>;

absl::Status CheckAddress(const GatewayOptions& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(const HostPort place, ParseListenAddress(options.listen));
  if (place.IsLoopback() || (options.insecure_bind && !options.client_token_file.empty())) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "NOT_LOOPBACK",
               absl::StrCat(options.listen,
                            " can be reached from other machines, and connections are not encrypted: give "
                            "a loopback address, or --insecure-bind and --client-token-file"));
}

// What the synchronizer is shown: the flags, or what the run directory's configuration names, in the role of a viewer.
absl::StatusOr<Security> FindSecurity(const GatewayOptions& options) {
  const ctl::TargetSecurityFlags& flags = options.security;
  if (!flags.empty()) {
    auth::TransportSecurity::Options shown = {.role = "viewer",
                                              .tls_cert = flags.tls_cert,
                                              .tls_key = flags.tls_key,
                                              .tls_ca = flags.tls_ca,
                                              .token_file = flags.token_file};
    if (!flags.trust_domain.empty()) shown.trust_domain = flags.trust_domain;
    return auth::TransportSecurity::Load(std::move(shown));
  }
  std::string run_dir = options.daemons.run_dir;
  if (run_dir.empty()) {
    if (!options.daemons.target.empty()) return Security();
    SYNCOPATE_ASSIGN_OR_RETURN(run_dir, daemon::FindNewestRun(options.daemons.runs_dir));
  }
  const auto config = config::LoadRunConfig(JoinPath(run_dir, config::kNextConfigFile));
  if (absl::IsNotFound(config.status())) return Security();  // the daemons were started by hand
  SYNCOPATE_RETURN_IF_ERROR(config.status());
  return auth::TransportSecurity::Load(config->security(), "viewer");
}

absl::StatusOr<std::string> FindSynchronizer(const GatewayOptions& options) {
  if (!options.daemons.target.empty()) return options.daemons.target;
  SYNCOPATE_ASSIGN_OR_RETURN(const ctl::Daemons daemons, ctl::Daemons::Find(options.daemons));
  SYNCOPATE_ASSIGN_OR_RETURN(const daemon::DaemonEndpoint found, daemons.Pick("", {"synchronizer"}));
  return found.grpc;
}

// The synchronizer's list of members. It is looked for again after an error: another process may have taken its place,
// at another address.
class MemberList {
 public:
  MemberList(const GatewayOptions& options, Security security) : options_(options), security_(std::move(security)) {}

  absl::StatusOr<v1::ListMembersResponse> Ask() {
    if (stub_ == nullptr) {
      SYNCOPATE_ASSIGN_OR_RETURN(const std::string address, FindSynchronizer(options_));
      SYNCOPATE_ASSIGN_OR_RETURN(auto channel,
                                 rpc::MakeChannel(address, {.security = security_, .peer_role = "synchronizer"}));
      stub_ = v1::SynchronizerService::NewStub(channel);
    }
    auto members = rpc::CallUnary(stub_.get(), &v1::SynchronizerService::Stub::ListMembers, v1::ListMembersRequest(),
                                  options_.daemons.timeout);
    if (!members.ok()) stub_.reset();
    return members;
  }

 private:
  const GatewayOptions& options_;
  const Security security_;
  std::unique_ptr<v1::SynchronizerService::Stub> stub_;
};

}  // namespace

std::set<std::string> ReadyEndpoints(const v1::ListMembersResponse& members) {
  std::set<std::string> ready;
  for (const v1::MemberStatus& member : members.members()) {
    const bool heard_of = member.state() == v1::MEMBER_STATE_ALIVE || member.state() == v1::MEMBER_STATE_SUSPECT;
    const auto place = ParseHostPort(member.endpoint_address());
    if (!heard_of || member.serving().epoch() == 0 || !place.ok() || place->port == 0) continue;
    // The address goes into a URL, where other characters would mean something else.
    const bool plain = std::all_of(place->host.begin(), place->host.end(), [](char c) {
      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == ':';
    });
    if (plain) ready.insert(place->ToString());
  }
  return ready;
}

absl::Status RunGateway(const GatewayOptions& options) {
  SYNCOPATE_RETURN_IF_ERROR(CheckAddress(options));
  SYNCOPATE_ASSIGN_OR_RETURN(daemon::SignalInbox signals, daemon::SignalInbox::Open());
  Gateway::Options serving = {.address = options.listen};
  SYNCOPATE_ASSIGN_OR_RETURN(const Security clients,
                             auth::TransportSecurity::Load({.role = "", .token_file = options.client_token_file}));
  if (clients != nullptr) {
    serving.judge = [clients](const std::string& authorization) { return clients->JudgeEndpoint(authorization); };
  }
  SYNCOPATE_ASSIGN_OR_RETURN(Security security, FindSecurity(options));
  MemberList list(options, std::move(security));
  SYNCOPATE_ASSIGN_OR_RETURN(const auto gateway, Gateway::Start(std::move(serving)));
  std::printf("gateway at %s\n", gateway->url().c_str());
  std::fflush(stdout);
  absl::Status last = absl::OkStatus();
  do {
    const auto members = list.Ask();
    if (members.ok()) {
      gateway->SetEndpoints(ReadyEndpoints(*members));
    } else if (members.status().code() != last.code()) {
      SYNCOPATE_LOG(kWarning, "the synchronizer does not say which rollouters there are: %s",
                    std::string(members.status().message()));
    }
    last = members.status();
  } while (!signals.Wait(kAskEvery).interrupt);
  gateway->Stop();
  return absl::OkStatus();
}

}  // namespace syncopate::gateway
