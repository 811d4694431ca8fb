// A member may join only in the role of its certificate or token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/rpc/bidi_stream.h"
#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "services/synchronizer/synchronizer_service.h"
#include "services/wire/sync_codec.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "tests/support/notification.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"
#include "tests/support/synchronizer_fixtures.h"
#include "tests/support/test_authority.h"
#include "tests/support/test_identity.h"

namespace syncopate::auth {
namespace {

using synchronizerd::SynchronizerServiceImpl;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;

v1::JoinRequest HelloAs(const std::string& role) {
  const MemberSecret secret = testing::GetSecret(role);
  MemberId member = role == "trainer" ? synchronizer::TrainerId("") : synchronizer::RollouterId(0, "");
  member.incarnation = secret.incarnation();
  v1::JoinRequest request;
  *request.mutable_hello() =
      wire::ToProto(synchronizer::HelloFor(member, std::make_shared<const Manifest>(synchronizer::SmallModel())));
  request.mutable_hello()->set_secret(secret.Reveal());
  return request;
}

class HelloRolesTest : public ::testing::Test {
 protected:
  void StartServer(std::shared_ptr<const TransportSecurity> security) {
    SynchronizerServiceImpl::Options options;
    options.loop.state_dir = folder_.path() + "/state";
    options.loop.plane.run_id = "run";
    options.security = security;
    service_ = SynchronizerServiceImpl::Start(std::move(options)).value();
    server_ = rpc::Server::Start({.security = std::move(security)}, {service_.get()}).value();
  }
  ~HelloRolesTest() override {
    service_->EndStreams();
    server_->Stop(absl::Seconds(2));
  }

  // Returns OK if the member is welcomed, else the status with which the stream ended.
  absl::Status Join(const std::string& said, const std::shared_ptr<const TransportSecurity>& security) {
    using Stream = rpc::ClientBidiStream<v1::JoinRequest, v1::JoinResponse>;
    auto stub = v1::SynchronizerService::NewStub(rpc::MakeChannel(server_->address(), {.security = security}).value());
    auto verdict = std::make_shared<Mailbox<absl::Status>>();
    auto stream = Stream::Create();
    stream->Write(HelloAs(said));
    stream->Start([&stub](auto* context, auto* reactor) { stub->async()->Join(context, reactor); },
                  {.on_message =
                       [verdict](const v1::JoinResponse& message) {
                         if (message.has_welcome()) verdict->Put(absl::OkStatus());
                       },
                   .on_done = [verdict](const absl::Status& status) { verdict->Put(status); }});
    if (!verdict->WaitFor(1)) return absl::DeadlineExceededError("neither welcome nor refusal");
    stream->Cancel();
    return verdict->All().front();
  }

  void ExpectHeldToIts(const std::string& caller, const std::shared_ptr<const TransportSecurity>& security) {
    for (const std::string said : {"trainer", "rollouter"}) {
      SCOPED_TRACE(caller + " joins as " + said);
      const absl::Status status = Join(said, security);
      if (caller == said) {
        EXPECT_THAT(status, IsOk());
      } else {
        EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
        EXPECT_THAT(status, HasReason("WRONG_ROLE"));
      }
    }
  }

  const testing::TestAuthority authority_;
  const testing::TempDir folder_;
  std::unique_ptr<SynchronizerServiceImpl> service_;
  std::unique_ptr<rpc::Server> server_;
};

TEST_F(HelloRolesTest, ACertificateJoinsAsWhatItIsAndAsNothingElse) {
  StartServer(authority_.SecurityFor("synchronizer"));
  for (AuthRole role : AllAuthRoles()) ExpectHeldToIts(AuthRoleName(role), authority_.SecurityFor(AuthRoleName(role)));
  // One trainer has joined, the one with the right role.
  auto stub = v1::SynchronizerService::NewStub(
      rpc::MakeChannel(server_->address(), {.security = authority_.SecurityFor("viewer")}).value());
  const auto status = rpc::CallUnary(stub.get(), &v1::SynchronizerService::Stub::GetStatus,
                                     v1::SynchronizerServiceGetStatusRequest(), kTestDeadline);
  ASSERT_THAT(status, IsOk());
  EXPECT_EQ(status->epoch(), 1);
}

TEST_F(HelloRolesTest, ATokenJoinsAsWhatItIsAndAsNothingElse) {
  auto token_of = [](AuthRole role) { return std::string(32, AuthRoleName(role)[0]); };
  std::string all;
  for (AuthRole role : AllAuthRoles()) all += std::string(AuthRoleName(role)) + " " + token_of(role) + "\n";
  StartServer(*TransportSecurity::Load({.role = "synchronizer", .token_file = authority_.WriteSecret("all", all)}));
  for (AuthRole role : {AuthRole::kTrainer, AuthRole::kRollouter, AuthRole::kSynchronizer}) {
    const std::string name = AuthRoleName(role);
    const std::string file = authority_.WriteSecret(name, name + " " + token_of(role) + "\n");
    ExpectHeldToIts(name, *TransportSecurity::Load({.role = name, .token_file = file}));
  }
}

}  // namespace
}  // namespace syncopate::auth
