#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/auth/audit.h"
#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "tests/component/auth/raw_call.h"
#include "tests/component/rpc/echo_service.h"
#include "tests/support/test_authority.h"

namespace syncopate::auth {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class AuditTest : public ::testing::Test {
 protected:
  void StartServer(const std::shared_ptr<const TransportSecurity>& security) {
    rpc::Server::Options options;
    options.security = security;
    options.interceptors = {AuditInterceptors(security, [this](const std::string& line) { lines_.Put(line); })};
    server_ = rpc::Server::Start(options, {&service_}).value();
  }
  absl::Status Evict(const std::shared_ptr<const TransportSecurity>& security, const std::string& request_id) {
    auto stub = v1::SynchronizerService::NewStub(rpc::MakeChannel(server_->address(), {.security = security}).value());
    v1::EvictMemberRequest request;
    request.set_request_id(request_id);
    return rpc::CallUnary(stub.get(), &v1::SynchronizerService::Stub::EvictMember, request, absl::Seconds(60)).status();
  }

  testing::TestAuthority authority_;
  rpc::EchoService service_;
  Mailbox<std::string> lines_;
  std::unique_ptr<rpc::Server> server_;
};

TEST_F(AuditTest, ACallThatActsLeavesWhoWhatWhichRequestAndHowItEnded) {
  StartServer(authority_.SecurityFor("synchronizer"));
  EXPECT_EQ(Evict(authority_.SecurityFor("admin"), "r-17").code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(lines_.WaitFor(1));
  EXPECT_THAT(lines_.All().front(),
              AllOf(StartsWith("/syncopate.v1.SynchronizerService/EvictMember by spiffe://syncopate/role/admin (admin) "
                               "from ipv4:127.0.0.1:"),
                    EndsWith(", request \"r-17\": NOT_FOUND")));
}

TEST_F(AuditTest, AStreamLeavesOneLineWhenItEnds) {
  StartServer(authority_.SecurityFor("synchronizer"));
  auto rollouter = rpc::MakeChannel(server_->address(), {.security = authority_.SecurityFor("rollouter")}).value();
  EXPECT_TRUE(CallRaw(rollouter, {.path = "/syncopate.v1.SynchronizerService/Join"}).ok());
  ASSERT_TRUE(lines_.WaitFor(1));
  EXPECT_THAT(lines_.All().front(),
              AllOf(HasSubstr("/Join by spiffe://syncopate/role/rollouter (rollouter)"), EndsWith(": OK")));
}

TEST_F(AuditTest, ReadingAndRefusedCallsLeaveNone) {
  StartServer(authority_.SecurityFor("synchronizer"));
  auto viewer = rpc::MakeChannel(server_->address(), {.security = authority_.SecurityFor("viewer")}).value();
  EXPECT_TRUE(absl::IsPermissionDenied(CallRaw(viewer, {.path = "/syncopate.v1.SynchronizerService/EvictMember"})));
  EXPECT_TRUE(absl::IsUnimplemented(CallRaw(viewer, {.path = "/syncopate.v1.SynchronizerService/GetStatus"})));
  EXPECT_EQ(Evict(authority_.SecurityFor("admin"), "last").code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(lines_.WaitFor(1));
  EXPECT_THAT(lines_.All().front(), HasSubstr("\"last\""));
}

TEST_F(AuditTest, APlaintextServerSaysThatItWasAnybody) {
  StartServer(nullptr);
  EXPECT_EQ(Evict(nullptr, "").code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(lines_.WaitFor(1));
  EXPECT_THAT(lines_.All().front(), AllOf(HasSubstr("by anybody from ipv4:127.0.0.1:"), Not(HasSubstr("request"))));
}

TEST_F(AuditTest, ARequestIdCannotForgeALineNorFillTheLog) {
  StartServer(nullptr);
  EXPECT_FALSE(Evict(nullptr, "x\naudit: /y by admin: OK" + std::string(1000, 'z')).ok());
  ASSERT_TRUE(lines_.WaitFor(1));
  const std::string line = lines_.All().front();
  EXPECT_THAT(line, AllOf(Not(HasSubstr("\n")), HasSubstr("x\\naudit")));
  EXPECT_LT(line.size(), 250u);
}

TEST_F(AuditTest, ATokenIsNamedByItsRoleAndNeverWritten) {
  const std::string token(40, 'q');
  const std::string file = authority_.WriteSecret("tokens", "admin " + token);
  StartServer(*TransportSecurity::Load({.role = "synchronizer", .token_file = file}));
  EXPECT_FALSE(Evict(*TransportSecurity::Load({.role = "", .token_file = file}), "r").ok());
  ASSERT_TRUE(lines_.WaitFor(1));
  EXPECT_THAT(lines_.All().front(), AllOf(HasSubstr("by a token of admin (admin)"), Not(HasSubstr("qqqq"))));
}

}  // namespace
}  // namespace syncopate::auth
