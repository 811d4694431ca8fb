#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "services/rpc/bidi_stream.h"
#include "services/rpc/channel.h"
#include "services/wire/codec.h"
#include "syncopate/v1/trajectory.grpc.pb.h"
#include "tests/support/notification.h"
#include "tests/support/test_identity.h"

namespace syncopate::trainerd {

// A rollouter's end of Exchange that sends what the test gives it and keeps what it receives.
class FakeRollouter {
 public:
  using Stream = rpc::ClientBidiStream<v1::ExchangeRequest, v1::ExchangeResponse>;

  explicit FakeRollouter(const std::string& address, std::shared_ptr<const auth::TransportSecurity> security = nullptr)
      : stub_(v1::TrajectoryService::NewStub(*rpc::MakeChannel(address, {.security = std::move(security)}))),
        stream_(Stream::Create()) {
    stream_->Start([this](auto* context, auto* reactor) { stub_->async()->Exchange(context, reactor); },
                   {.on_message = [heard = heard_](v1::ExchangeResponse message) { heard->Put(std::move(message)); },
                    .on_done = [ends = heard_](const absl::Status& status) { ends->ends.Put(status); }});
  }
  ~FakeRollouter() {
    Break();
    WaitForEnd().IgnoreError();
  }

  // Joins as the incarnation that the test calls `member.incarnation`; the real incarnation is the hash of the secret.
  void Hello(MemberId member, const std::string& run_id) {
    const MemberSecret secret = testing::GetSecret(member.incarnation);
    member.incarnation = secret.incarnation();
    Hello(member, secret, run_id);
  }
  void Hello(const MemberId& member, const MemberSecret& secret, const std::string& run_id) {
    member_ = member;
    v1::ExchangeRequest request;
    *request.mutable_hello()->mutable_member() = wire::ToProto(member);
    request.mutable_hello()->set_run_id(run_id);
    request.mutable_hello()->set_secret(secret.Reveal());
    request.mutable_hello()->mutable_cards()->Assign(cards.begin(), cards.end());
    stream_->Write(request);
  }
  std::vector<std::string> cards;  // on which its ranks compute; set it before Hello()
  void Credits(int32_t groups, const PolicyVersion& serving) {
    v1::ExchangeRequest request;
    *request.mutable_serving() = wire::ToProto(serving);
    request.mutable_credits()->set_groups(groups);
    stream_->Write(request);
  }
  // Submits the group as if this rollouter had made it.
  void Submit(TrajectoryGroup group) {
    group.rollouter = member_.replica_id;
    group.incarnation = member_.incarnation;
    SubmitAsItIs(group);
  }
  void SubmitAsItIs(const TrajectoryGroup& group) {
    v1::ExchangeRequest request;
    *request.mutable_group() = wire::ToProto(group);
    stream_->Write(request);
  }
  void Return(const LeaseId& lease, const absl::Status& why) {
    v1::ExchangeRequest request;
    *request.mutable_return_lease()->mutable_lease() = wire::ToProto(lease);
    *request.mutable_return_lease()->mutable_error() = rpc::ToProto(why);
    stream_->Write(request);
  }
  void Progress(const std::vector<LeaseId>& leases, const PolicyVersion& serving) {
    v1::ExchangeRequest request;
    *request.mutable_serving() = wire::ToProto(serving);
    for (const LeaseId& lease : leases) *request.mutable_progress()->add_leases() = wire::ToProto(lease);
    stream_->Write(request);
  }
  void Send(const v1::ExchangeRequest& request) { stream_->Write(request); }
  void Break() { stream_->Cancel(); }

  // Waits for the n-th lease, acknowledgement, ..., counted from 0, and returns it.
  absl::StatusOr<Lease> WaitForLease(size_t n) {
    if (!heard_->leases.WaitFor(n + 1)) return absl::DeadlineExceededError("no lease");
    return wire::FromProto(heard_->leases.All()[n]);
  }
  absl::StatusOr<v1::ExchangeResponse::Ack> WaitForAck(size_t n) {
    if (!heard_->acks.WaitFor(n + 1)) return absl::DeadlineExceededError("no acknowledgement");
    return heard_->acks.All()[n];
  }
  absl::StatusOr<v1::ExchangeResponse::Revoke> WaitForRevoke(size_t n) {
    if (!heard_->revocations.WaitFor(n + 1)) return absl::DeadlineExceededError("no revocation");
    return heard_->revocations.All()[n];
  }
  absl::StatusOr<int64_t> WaitForWelcome() {
    if (!heard_->welcomes.WaitFor(1)) return absl::DeadlineExceededError("no welcome");
    return heard_->welcomes.All()[0].epoch();
  }
  bool takes_turns() const { return heard_->welcomes.All().at(0).takes_turns(); }
  absl::StatusOr<v1::ExchangeResponse::CardTurn> WaitForTurn(size_t n) {
    if (!heard_->turns.WaitFor(n + 1)) return absl::DeadlineExceededError("no turn");
    return heard_->turns.All()[n];
  }
  absl::Status WaitForEnd() {
    if (!heard_->ends.WaitFor(1)) return absl::DeadlineExceededError("the stream does not end");
    return heard_->ends.All()[0];
  }
  size_t leases() { return heard_->leases.size(); }

 private:
  struct Heard {
    void Put(v1::ExchangeResponse message) {
      if (message.has_lease()) leases.Put(message.lease());
      if (message.has_ack()) acks.Put(message.ack());
      if (message.has_revoke()) revocations.Put(message.revoke());
      if (message.has_welcome()) welcomes.Put(message.welcome());
      if (message.has_turn()) turns.Put(message.turn());
    }
    Mailbox<v1::ExchangeResponse::Lease> leases;
    Mailbox<v1::ExchangeResponse::Ack> acks;
    Mailbox<v1::ExchangeResponse::Revoke> revocations;
    Mailbox<v1::ExchangeResponse::Welcome> welcomes;
    Mailbox<v1::ExchangeResponse::CardTurn> turns;
    Mailbox<absl::Status> ends;
  };

  MemberId member_;
  std::shared_ptr<Heard> heard_ = std::make_shared<Heard>();
  std::unique_ptr<v1::TrajectoryService::Stub> stub_;
  std::shared_ptr<Stream> stream_;
};

}  // namespace syncopate::trainerd
