#include "services/trainer/run_witnesses.h"

#include <future>
#include <string>
#include <vector>

#include "base/log.h"
#include "services/rpc/channel.h"
#include "services/wire/codec.h"
#include "syncopate/v1/rollout.grpc.pb.h"

namespace syncopate::trainerd {
namespace {

// The run is over and its grace period passes; a rollouter that is gone has reported its work on its stream.
constexpr absl::Duration kPatience = absl::Seconds(1);

using trainer::RollouterFigures;

absl::StatusOr<RollouterFigures> AskRollouter(const std::string& address,
                                              const std::shared_ptr<const auth::TransportSecurity>& security) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto channel, rpc::MakeChannel(address, {.security = security, .peer_role = "rollouter"}));
  auto stub = v1::RolloutService::NewStub(channel);
  SYNCOPATE_ASSIGN_OR_RETURN(const auto status, rpc::CallUnary(stub.get(), &v1::RolloutService::Stub::GetStatus,
                                                               v1::RolloutServiceGetStatusRequest(), kPatience));
  return RollouterFigures{.replica_id = status.member().replica_id(),
                          .incarnation = status.member().incarnation(),
                          .version = wire::FromProto(status.serving()),
                          .work = {.generated_tokens = status.generated_tokens(),
                                   .groups_submitted = status.groups_submitted(),
                                   .busy_seconds = status.busy_seconds(),
                                   .idle_seconds = status.idle_seconds()},
                          .answered = true};
}

// All at once, each on a thread of its own: this is called once in a run.
std::vector<RollouterFigures> AskRollouters(const std::vector<v1::MemberStatus>& members,
                                            const std::shared_ptr<const auth::TransportSecurity>& security) {
  std::vector<std::future<absl::StatusOr<RollouterFigures>>> answers;
  answers.reserve(members.size());
  for (const v1::MemberStatus& member : members) {
    answers.push_back(std::async(std::launch::async, AskRollouter, member.address(), security));
  }
  std::vector<RollouterFigures> given;
  for (size_t i = 0; i < members.size(); ++i) {
    auto answer = answers[i].get();
    if (answer.ok()) {
      given.push_back(*std::move(answer));
    } else {
      SYNCOPATE_LOG(kWarning, "%s does not answer, the summary has what it said last: %s",
                    members[i].member().replica_id(), answer.status().ToString());
    }
  }
  return given;
}

}  // namespace

trainer::RunWitnesses AskWitnesses(SynchronizerClient* synchronizer,
                                   const std::shared_ptr<const auth::TransportSecurity>& security) {
  trainer::RunWitnesses witnesses;
  auto syncs = synchronizer->TallySyncs();
  if (syncs.ok()) {
    witnesses.syncs = *std::move(syncs);
  } else {
    SYNCOPATE_LOG(kWarning, "the summary lacks weight syncs: %s", syncs.status().ToString());
  }
  const auto rollouters = synchronizer->ListRollouters();
  if (rollouters.ok()) {
    witnesses.rollouters = AskRollouters(*rollouters, security);
  } else {
    SYNCOPATE_LOG(kWarning, "the summary lacks rollouters: %s", rollouters.status().ToString());
  }
  return witnesses;
}

}  // namespace syncopate::trainerd
