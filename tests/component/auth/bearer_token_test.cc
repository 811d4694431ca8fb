#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "absl/time/clock.h"

#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "tests/component/auth/raw_call.h"
#include "tests/component/rpc/echo_service.h"
#include "tests/support/test_authority.h"

namespace syncopate::auth {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kAdminToken(48, 'a');

class BearerTokenTest : public ::testing::Test {
 protected:
  void SetUp() override { tokens_ = authority_.WriteSecret("tokens", "admin " + kAdminToken + "\n"); }

  void StartServer(const TransportSecurity::Options& options) {
    security_ = *TransportSecurity::Load(options);
    server_ = rpc::Server::Start({.security = security_}, {&service_}).value();
  }
  absl::Status Evict(const std::shared_ptr<const TransportSecurity>& security) {
    auto stub = v1::SynchronizerService::NewStub(rpc::MakeChannel(server_->address(), {.security = security}).value());
    return rpc::CallUnary(stub.get(), &v1::SynchronizerService::Stub::EvictMember, v1::EvictMemberRequest(),
                          absl::Seconds(60))
        .status();
  }
  absl::Status EvictWith(const std::string& authorization) {
    auto channel = rpc::MakeChannel(server_->address()).value();
    RawCall call = {.path = kEvict};
    if (!authorization.empty()) call.metadata["authorization"] = authorization;
    return CallRaw(channel, call);
  }

  testing::TestAuthority authority_;
  std::string tokens_;
  rpc::EchoService service_;
  std::shared_ptr<const TransportSecurity> security_;
  std::unique_ptr<rpc::Server> server_;
};

TEST_F(BearerTokenTest, OpensAPlaintextServerToACallerThatHasIt) {
  StartServer({.role = "synchronizer", .token_file = tokens_});
  const absl::Status status = Evict(*TransportSecurity::Load({.role = "", .token_file = tokens_}));
  EXPECT_EQ(ErrorReason(status), "NO_SUCH_MEMBER") << status;
}

TEST_F(BearerTokenTest, AbsentEmptyOrWrongItOpensNothing) {
  StartServer({.role = "synchronizer", .token_file = tokens_});
  for (const std::string& authorization : {std::string(), std::string("Bearer "), "Bearer " + std::string(48, 'z'),
                                           "Bearer " + kAdminToken.substr(1), "Basic " + kAdminToken, kAdminToken}) {
    const absl::Status status = EvictWith(authorization);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << authorization << ": " << status;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("aaaa")));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("zzzz")));
  }
  EXPECT_EQ(security_->refusals(), 6);
  EXPECT_EQ(
      CallRaw(rpc::MakeChannel(server_->address()).value(), {.path = std::string(kEvict) + "?token=" + kAdminToken})
          .code(),
      absl::StatusCode::kUnauthenticated);
}

TEST_F(BearerTokenTest, OverTlsItStandsForACertificate) {
  TransportSecurity::Options options = authority_.OptionsFor("synchronizer");
  options.token_file = tokens_;
  StartServer(options);
  const TransportSecurity::Options with = {.role = "", .tls_ca = authority_.ca(), .token_file = tokens_};
  EXPECT_EQ(ErrorReason(Evict(*TransportSecurity::Load(with))), "NO_SUCH_MEMBER");
  const absl::Status without = Evict(*TransportSecurity::Load({.role = "", .tls_ca = authority_.ca()}));
  EXPECT_EQ(without.code(), absl::StatusCode::kUnauthenticated) << without;
  EXPECT_EQ(ErrorReason(Evict(authority_.SecurityFor("admin"))), "NO_SUCH_MEMBER");
}

TEST_F(BearerTokenTest, AWithdrawnOneOpensNothingAnyMore) {
  StartServer({.role = "synchronizer", .tls_reload = absl::Seconds(1), .token_file = tokens_});
  ASSERT_EQ(EvictWith("Bearer " + kAdminToken).code(), absl::StatusCode::kNotFound);
  authority_.WriteSecret("tokens", "admin " + std::string(48, 'b') + "\n");
  const absl::Time deadline = absl::Now() + kTestDeadline;
  while (EvictWith("Bearer " + kAdminToken).code() != absl::StatusCode::kUnauthenticated) {
    ASSERT_LT(absl::Now(), deadline);
  }
  EXPECT_EQ(EvictWith("Bearer " + std::string(48, 'b')).code(), absl::StatusCode::kNotFound);
}

TEST_F(BearerTokenTest, AFileThatOthersMayReadStartsNothing) {
  std::filesystem::permissions(tokens_, std::filesystem::perms(0444));
  const absl::Status status = TransportSecurity::Load({.role = "trainer", .token_file = tokens_}).status();
  EXPECT_EQ(ErrorReason(status), "BAD_SECURITY");
  EXPECT_THAT(std::string(status.message()), HasSubstr(tokens_));
}

}  // namespace
}  // namespace syncopate::auth
