// The limits of a server whose connections are encrypted. They apply before a peer is authenticated, and after.
#include <gtest/gtest.h>

#include <string>

#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "tests/component/auth/raw_call.h"
#include "tests/component/rpc/echo_service.h"
#include "tests/support/raw_connection.h"
#include "tests/support/test_authority.h"

namespace syncopate::auth {
namespace {

using ::syncopate::testing::RawConnection;

class LimitsTest : public ::testing::Test {
 protected:
  void StartServer(rpc::Server::Options options = {}) {
    options.security = authority_.SecurityFor("synchronizer");
    server_ = rpc::Server::Start(options, {&service_}).value();
  }
  std::shared_ptr<grpc::Channel> Connect() {
    return rpc::MakeChannel(server_->address(), {.max_metadata_bytes = 1 << 20, .security = admin_}).value();
  }
  absl::Status Evict(const std::shared_ptr<grpc::Channel>& channel, size_t request_bytes = 0) {
    auto stub = v1::SynchronizerService::NewStub(channel);
    v1::EvictMemberRequest request;
    request.set_reason(std::string(request_bytes, 'x'));
    return rpc::CallUnary(stub.get(), &v1::SynchronizerService::Stub::EvictMember, request, absl::Seconds(60)).status();
  }

  testing::TestAuthority authority_;
  std::shared_ptr<const TransportSecurity> admin_ = authority_.SecurityFor("admin");
  rpc::EchoService service_;
  std::unique_ptr<rpc::Server> server_;
};

TEST_F(LimitsTest, AConnectionThatDoesNotFinishItsHandshakeIsClosed) {
  StartServer({.handshake_timeout = absl::Milliseconds(300)});
  RawConnection silent(server_->port());
  RawConnection slow(server_->port());
  ASSERT_TRUE(silent.connected() && slow.connected());
  ASSERT_TRUE(slow.Send(std::string("\x16\x03\x01\x02", 4)));  // a record that never arrives whole
  EXPECT_TRUE(silent.WaitClosed(kTestDeadline));
  EXPECT_TRUE(slow.WaitClosed(kTestDeadline));
  EXPECT_EQ(ErrorReason(Evict(Connect())), "NO_SUCH_MEMBER");
}

TEST_F(LimitsTest, GarbageClosesItsOwnConnectionAndNoOther) {
  StartServer();
  auto channel = Connect();
  ASSERT_EQ(ErrorReason(Evict(channel)), "NO_SUCH_MEMBER");
  for (const std::string& words :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        std::string(65536, '\xff'), std::string(65536, '\0')}) {
    RawConnection stranger(server_->port());
    ASSERT_TRUE(stranger.connected());
    stranger.Send(words);  // the server may close before it has read all of it
    EXPECT_TRUE(stranger.WaitClosed(kTestDeadline));
  }
  EXPECT_EQ(ErrorReason(Evict(channel)), "NO_SUCH_MEMBER");
}

TEST_F(LimitsTest, MetadataBeyondTheLimitEndsTheCallBeforeAServiceSeesIt) {
  StartServer();
  auto other = Connect();
  ASSERT_EQ(ErrorReason(Evict(other)), "NO_SUCH_MEMBER");
  const absl::Status status = CallRaw(Connect(), {.path = kEvict, .metadata = {{"x", std::string(16 << 10, 'x')}}});
  // gRPC may close the connection together with the call.
  EXPECT_TRUE(absl::IsResourceExhausted(status) || absl::IsUnavailable(status)) << status;
  EXPECT_EQ(ErrorReason(Evict(other)), "NO_SUCH_MEMBER");
}

TEST_F(LimitsTest, AMessageBeyondTheLimitEndsTheCall) {
  StartServer({.max_receive_bytes = 1 << 20});
  auto channel = Connect();
  EXPECT_EQ(Evict(channel, 2 << 20).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(Evict(channel, 1000)), "NO_SUCH_MEMBER");
}

TEST_F(LimitsTest, OnePeerHasALimitedNumberOfConnections) {
  StartServer({.connections = {.total = 100, .per_peer = 2}});
  auto first = Connect();
  auto second = Connect();
  ASSERT_EQ(ErrorReason(Evict(first)), "NO_SUCH_MEMBER");
  ASSERT_EQ(ErrorReason(Evict(second)), "NO_SUCH_MEMBER");
  EXPECT_EQ(Evict(Connect()).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(Evict(first)), "NO_SUCH_MEMBER");
}

}  // namespace
}  // namespace syncopate::auth
