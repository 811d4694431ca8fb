#include "services/trainer/completion_notice.h"

#include "base/uuid.h"
#include "services/rpc/channel.h"
#include "services/wire/codec.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"

namespace syncopate::trainerd {

absl::Status TellCompletion(const std::string& synchronizer_address,
                            const std::shared_ptr<const auth::TransportSecurity>& security, const MemberId& member,
                            const MemberSecret& secret, const PolicyVersion& last, absl::Duration timeout) {
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto channel, rpc::MakeChannel(synchronizer_address, {.security = security, .peer_role = "synchronizer"}));
  auto stub = v1::SynchronizerService::NewStub(channel);
  v1::CompleteRunRequest request;
  request.set_request_id(RandomUuid());
  *request.mutable_member() = wire::ToProto(member);
  request.set_secret(secret.Reveal());
  *request.mutable_version() = wire::ToProto(last);
  return rpc::CallUnary(stub.get(), &v1::SynchronizerService::Stub::CompleteRun, request, timeout).status();
}

}  // namespace syncopate::trainerd
