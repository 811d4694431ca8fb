#include "tools/ctl/daemons.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "services/rpc/channel.h"
#include "syncopate/v1/rollout.grpc.pb.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "syncopate/v1/trainer.grpc.pb.h"

namespace syncopate::ctl {
namespace {

template <typename Service, typename Request, typename Response>
absl::StatusOr<Response> Ask(const std::shared_ptr<grpc::Channel>& channel,
                             grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                             absl::Duration timeout) {
  auto stub = Service::NewStub(channel);
  return rpc::CallUnary(stub.get(), method, Request(), timeout);
}

}  // namespace

absl::StatusOr<daemon::DaemonEndpoint> AskWho(const std::shared_ptr<grpc::Channel>& channel, absl::Duration timeout) {
  using v1::RolloutService, v1::SynchronizerService, v1::TrainerService;
  auto unknown = [](const absl::Status& status) { return status.code() == absl::StatusCode::kUnimplemented; };
  daemon::DaemonEndpoint who;
  auto synchronizer = Ask<SynchronizerService>(channel, &SynchronizerService::Stub::GetStatus, timeout);
  if (!unknown(synchronizer.status())) {
    who.role = "synchronizer";
    return synchronizer.ok() ? absl::StatusOr<daemon::DaemonEndpoint>(who) : synchronizer.status();
  }
  auto trainer = Ask<TrainerService>(channel, &TrainerService::Stub::GetStatus, timeout);
  if (!unknown(trainer.status())) {
    who.role = "trainer";
    return trainer.ok() ? absl::StatusOr<daemon::DaemonEndpoint>(who) : trainer.status();
  }
  auto rollouter = Ask<RolloutService>(channel, &RolloutService::Stub::GetStatus, timeout);
  if (!unknown(rollouter.status())) {
    if (!rollouter.ok()) return rollouter.status();
    who.role = "rollouter";
    who.name = rollouter->member().replica_id();
    return who;
  }
  return Error(absl::StatusCode::kFailedPrecondition, "NOT_A_DAEMON", "what listens there is no Syncopate daemon");
}

absl::StatusOr<Daemons> Daemons::Find(const DaemonOptions& options) {
  Daemons daemons;
  if (!options.target.empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto channel, rpc::MakeChannel(options.target, {.security = options.security}));
    auto who = AskWho(channel, options.timeout);
    if (!who.ok()) return Annotate(who.status(), options.target);
    who->grpc = options.target;
    daemons.endpoints_.push_back(*std::move(who));
    return daemons;
  }
  std::string run_dir = options.run_dir;
  if (run_dir.empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(run_dir, daemon::FindNewestRun(options.runs_dir));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(daemons.endpoints_, daemon::ReadRunEndpoints(run_dir));
  return daemons;
}

absl::StatusOr<daemon::DaemonEndpoint> Daemons::Pick(const std::string& who,
                                                     const std::vector<std::string>& roles) const {
  for (const std::string& role : roles) {
    for (const daemon::DaemonEndpoint& endpoint : endpoints_) {
      bool named = who.empty() || who == endpoint.role || who == endpoint.Name();
      if (named && endpoint.role == role) return endpoint;
    }
  }
  std::vector<std::string> names;
  for (const daemon::DaemonEndpoint& endpoint : endpoints_) {
    if (who == endpoint.role || who == endpoint.Name()) {
      return Error(absl::StatusCode::kInvalidArgument, "WRONG_ROLE",
                   absl::StrCat(who, " does not do that; a ", absl::StrJoin(roles, " or "), " does"));
    }
    names.push_back(endpoint.Name());
  }
  return Error(absl::StatusCode::kNotFound, "NO_SUCH_DAEMON",
               absl::StrCat("there is no ", who.empty() ? absl::StrJoin(roles, " or ") : who, "; there is ",
                            absl::StrJoin(names, ", ")));
}

}  // namespace syncopate::ctl
