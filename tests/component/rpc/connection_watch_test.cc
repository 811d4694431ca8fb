#include "services/rpc/accept/connection_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "tests/component/rpc/echo_service.h"
#include "tests/support/notification.h"
#include "tests/support/raw_connection.h"

namespace syncopate::rpc {
namespace {

using ::syncopate::testing::HeaderFlood;
using ::syncopate::testing::Http2Hello;
using ::syncopate::testing::RawConnection;

constexpr int64_t kEndless = int64_t{256} << 20;

std::string AskOnce(const Server& server) {
  auto stub = v1::SynchronizerService::NewStub(MakeChannel(server.address()).value());
  return ErrorReason(
      CallUnary(stub.get(), &v1::SynchronizerService::Stub::EvictMember, v1::EvictMemberRequest(), kTestDeadline)
          .status());
}

class HeaderFloodTest : public ::testing::TestWithParam<HeaderFlood (*)()> {};

// The number of bytes that a peer could send before its connection was cut; kEndless if it was not cut.
int64_t Flood(RawConnection* peer, const HeaderFlood& flood) {
  if (!peer->Send(Http2Hello() + flood.begin)) return 0;
  for (int64_t sent = 0; sent < kEndless; sent += static_cast<int64_t>(flood.more.size())) {
    if (!peer->Send(flood.more)) return sent;
  }
  return kEndless;
}

TEST_P(HeaderFloodTest, ThePeerIsCutOffAndOthersAreServed) {
  EchoService service;
  auto server = Server::Start({}, {&service}).value();
  RawConnection peer(server->port());
  ASSERT_TRUE(peer.connected());
  EXPECT_LT(Flood(&peer, GetParam()()), kEndless);
  EXPECT_TRUE(peer.WaitClosed(kTestDeadline));
  EXPECT_EQ(AskOnce(*server), "NO_SUCH_MEMBER");
}

INSTANTIATE_TEST_SUITE_P(EndlessHeaders, HeaderFloodTest,
                         ::testing::Values(&HeaderFlood::OfManyHeaders, &HeaderFlood::OfOneLongHeader));

TEST(ConnectionWatchTest, APeerThatHasBegunACallMaySendMuchMore) {
  EchoService service;
  service.set_on_message([](const std::shared_ptr<JoinServerStream>& stream, JoinRequest request) {
    stream->Write(TextResponse(std::to_string(request.leave().reason().size())));
  });
  auto server = Server::Start({}, {&service}).value();
  JoinClient client = JoinClient::Open(MakeChannel(server->address()).value());
  constexpr size_t kMessages = 40;
  for (size_t i = 0; i < kMessages; ++i) {
    client.stream->Write(TextRequest(std::string(1 << 20, 'x')));
    ASSERT_TRUE(client.texts->WaitFor(i + 1));  // otherwise the queue of the stream itself would be the limit
  }
  EXPECT_EQ(client.done->size(), 0u);
  client.stream->Cancel();
  EXPECT_TRUE(client.done->WaitFor(1));
}

TEST(ConnectionWatchTest, APeerThatSaysNothingIsNotCutOffByIt) {
  EchoService service;
  auto server = Server::Start({}, {&service}).value();
  RawConnection silent(server->port());
  ASSERT_TRUE(silent.Send(Http2Hello()));
  EXPECT_FALSE(silent.WaitClosed(absl::Seconds(1)));
  EXPECT_EQ(AskOnce(*server), "NO_SUCH_MEMBER");
}

}  // namespace
}  // namespace syncopate::rpc
