#include "services/rpc/accept/connection_limit.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "base/acceptor.h"
#include "base/clock.h"
#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "tests/component/rpc/echo_service.h"
#include "tests/support/notification.h"
#include "tests/support/status_matchers.h"

namespace syncopate::rpc {
namespace {

using syncopate::testing::HasMessage;
using syncopate::testing::HasReason;
using syncopate::testing::IsOk;
using ::testing::HasSubstr;

// A TCP connection from one of this machine's loopback addresses, closed with the object.
class Connection {
 public:
  Connection(const std::string& from, int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, from.c_str(), &address.sin_addr);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    address.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Connection() { ::close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

 private:
  const int fd_;
};

class ConnectionLimitTest : public ::testing::Test {
 protected:
  ~ConnectionLimitTest() override {
    for (int fd : accepted_) ::close(fd);
  }
  // The server's end of a new connection from `peer`.
  int Accept(const std::string& peer) {
    connections_.push_back(std::make_unique<Connection>(peer, acceptor_->endpoint().port));
    int fd = -1;
    while ((fd = acceptor_->Accept()) < 0) {
    }
    accepted_.push_back(fd);
    return fd;
  }
  void Close(int fd) {
    accepted_.erase(std::find(accepted_.begin(), accepted_.end(), fd));
    ::close(fd);
  }

  std::unique_ptr<Acceptor> acceptor_ = Acceptor::Listen({.host = "127.0.0.1", .port = 0}).value();
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<int> accepted_;
};

TEST_F(ConnectionLimitTest, OnePeerHasItsShareAndTheOthersTheirs) {
  ConnectionLimit limit({.total = 100, .per_peer = 2});
  for (int i = 0; i < 2; ++i) EXPECT_THAT(limit.Admit(Accept("127.0.0.2")), IsOk());
  const absl::Status refused = limit.Admit(Accept("127.0.0.2"));
  EXPECT_THAT(refused, HasReason("TOO_MANY_CONNECTIONS"));
  EXPECT_THAT(refused, HasMessage(HasSubstr("127.0.0.2 has 2")));
  EXPECT_THAT(limit.Admit(Accept("127.0.0.3")), IsOk());
}

TEST_F(ConnectionLimitTest, AllTogetherAreBounded) {
  ConnectionLimit limit({.total = 3, .per_peer = 2});
  for (const char* peer : {"127.0.0.2", "127.0.0.3", "127.0.0.4"}) EXPECT_THAT(limit.Admit(Accept(peer)), IsOk());
  EXPECT_THAT(limit.Admit(Accept("127.0.0.5")), HasMessage(HasSubstr("there are 3")));
}

TEST_F(ConnectionLimitTest, AConnectionThatAnotherOwnerClosedCountsNoMore) {
  ConnectionLimit limit({.total = 100, .per_peer = 2});
  const int first = Accept("127.0.0.2"), second = Accept("127.0.0.2");
  EXPECT_THAT(limit.Admit(first), IsOk());
  EXPECT_THAT(limit.Admit(second), IsOk());
  Close(first);
  const int third = Accept("127.0.0.2");  // the third connection most likely gets the same descriptor again
  EXPECT_THAT(limit.Admit(third), IsOk());
  EXPECT_THAT(limit.Admit(Accept("127.0.0.2")), HasReason("TOO_MANY_CONNECTIONS"));
  Close(second);
  const int other = ::dup(0);  // the number of the descriptor is used again for something else
  EXPECT_THAT(limit.Admit(Accept("127.0.0.2")), IsOk());
  ::close(other);
}

TEST(ServerConnectionsTest, APeerWithTooManyIsTurnedAwayAndServedAgainWhenItHasFewer) {
  EchoService service;
  auto server = Server::Start({.connections = {.total = 100, .per_peer = 2}}, {&service}).value();
  auto call = [&] {
    auto channel = MakeChannel(server->address()).value();
    auto stub = v1::SynchronizerService::NewStub(channel);
    return CallUnary(stub.get(), &v1::SynchronizerService::Stub::EvictMember, v1::EvictMemberRequest(), kTestDeadline);
  };
  std::vector<std::unique_ptr<Connection>> idle;
  for (int i = 0; i < 2; ++i) idle.push_back(std::make_unique<Connection>("127.0.0.1", server->port()));
  EXPECT_EQ(call().status().code(), absl::StatusCode::kUnavailable);
  idle.clear();
  // gRPC closes its ends a moment later.
  const absl::Time deadline = Clock::Real()->Now() + kTestDeadline;
  absl::Status status;
  do {
    status = call().status();
  } while (absl::IsUnavailable(status) && Clock::Real()->Now() < deadline);
  EXPECT_THAT(status, HasReason("NO_SUCH_MEMBER")) << "the service answers every caller so";
}

}  // namespace
}  // namespace syncopate::rpc
