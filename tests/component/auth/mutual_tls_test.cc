#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "tests/component/rpc/echo_service.h"
#include "tests/support/test_authority.h"

namespace syncopate::services {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);

// A synchronizer whose EvictMember answers NOT_FOUND to whoever is let through.
class MutualTlsTest : public ::testing::Test {
 protected:
  void StartServer(const std::shared_ptr<const TransportSecurity>& security) {
    server_ = Server::Start({.address = "127.0.0.1:0", .security = security}, {&service_}).value();
  }
  absl::Status Evict(const std::shared_ptr<const TransportSecurity>& security,
                     const std::string& peer_role = "synchronizer") {
    auto channel = MakeChannel(server_->address(), {.security = security, .peer_role = peer_role}).value();
    auto stub = v1::SynchronizerService::NewStub(channel);
    v1::EvictMemberRequest request;
    request.set_replica_id("rollouter-9");
    return CallUnary(stub.get(), &v1::SynchronizerService::Stub::EvictMember, request, kPatience).status();
  }

  TestAuthority authority_;
  EchoService service_;
  std::unique_ptr<Server> server_;
};

TEST_F(MutualTlsTest, LetsARightCertificateThrough) {
  StartServer(authority_.SecurityFor("synchronizer"));
  const absl::Status status = Evict(authority_.SecurityFor("admin"));
  EXPECT_EQ(ErrorReason(status), "NO_SUCH_MEMBER") << status;
}

TEST_F(MutualTlsTest, RefusesAClientWithoutACertificate) {
  auto security = authority_.SecurityFor("synchronizer");
  StartServer(security);
  auto bare = TransportSecurity::Load({.role = "", .tls_ca = authority_.ca()}).value();
  const absl::Status status = Evict(bare);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_GE(security->refusals(), 1);
}

TEST_F(MutualTlsTest, RefusesAPlaintextClient) {
  StartServer(authority_.SecurityFor("synchronizer"));
  const absl::Status status = Evict(nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_F(MutualTlsTest, RefusesARoleThatTheTableDoesNotName) {
  StartServer(authority_.SecurityFor("synchronizer"));
  const absl::Status status = Evict(authority_.SecurityFor("viewer"));
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the role viewer may not call"));
}

}  // namespace
}  // namespace syncopate::services
