#include "services/rpc/server.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

#include "services/rpc/channel.h"
#include "tests/component/rpc/echo_service.h"

namespace syncopate::rpc {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<grpc::Channel> Connect(const Server& server, const ChannelOptions& options = {}) {
  return MakeChannel(server.address(), options).value();
}

absl::StatusOr<v1::EvictMemberResponse> Evict(const std::shared_ptr<grpc::Channel>& channel, const std::string& name,
                                              absl::Duration timeout = kTestDeadline) {
  auto stub = v1::SynchronizerService::NewStub(channel);
  v1::EvictMemberRequest request;
  request.set_replica_id(name);
  return CallUnary(stub.get(), &v1::SynchronizerService::Stub::EvictMember, request, timeout);
}

TEST(ServerTest, CarriesReasonAndMetadataOfAnErrorToTheClient) {
  EchoService service;
  auto server = Server::Start({}, {&service}).value();
  absl::Status status = Evict(Connect(*server), "rollouter-7").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrorReason(status), "NO_SUCH_MEMBER");
  EXPECT_EQ(ErrorDetails(status), (ErrorMetadata{{"member", "rollouter-7"}}));
}

TEST(ServerTest, SaysWhichAddressIsTaken) {
  EchoService service;
  auto first = Server::Start({}, {&service}).value();
  EchoService other;
  auto second = Server::Start({.address = first->address()}, {&other});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ErrorReason(second.status()), "ADDRESS_IN_USE");
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(first->address()));
}

TEST(ServerTest, RefusesToListenBeyondLoopbackUnlessToldSo) {
  EchoService service;
  auto refused = Server::Start({.address = "0.0.0.0:0"}, {&service});
  EXPECT_EQ(ErrorReason(refused.status()), "INSECURE_BIND");
  auto allowed = Server::Start({.address = "0.0.0.0:0", .insecure_bind = true}, {&service});
  ASSERT_TRUE(allowed.ok()) << allowed.status();
  auto channel = MakeChannel(absl::StrCat("127.0.0.1:", (*allowed)->port())).value();
  EXPECT_EQ(ErrorReason(Evict(channel, "x").status()), "NO_SUCH_MEMBER");
}

TEST(ServerTest, RefusesAddressesThatAreNone) {
  EchoService service;
  for (const char* address :
       {"", "localhost", ":80", "localhost:", "localhost:http", "1.2.3.4:70000", "::1:80", "-:1"}) {
    EXPECT_EQ(ErrorReason(Server::Start({.address = address}, {&service}).status()), "BAD_ADDRESS") << address;
  }
  EXPECT_EQ(ErrorReason(MakeChannel("nowhere").status()), "BAD_ADDRESS");
  EXPECT_EQ(ErrorReason(MakeChannel("localhost:0").status()), "BAD_ADDRESS");
}

TEST(ServerTest, RefusesOptionsThatAreNotPositive) {
  EchoService service;
  EXPECT_EQ(ErrorReason(Server::Start({.max_receive_bytes = 0}, {&service}).status()), "BAD_OPTIONS");
  EXPECT_EQ(ErrorReason(Server::Start({.max_concurrent_streams = 0}, {&service}).status()), "BAD_OPTIONS");
  EXPECT_EQ(ErrorReason(MakeChannel("localhost:1", {.keepalive_time = absl::ZeroDuration()}).status()), "BAD_OPTIONS");
}

TEST(ServerTest, RefusesAMessageOverItsLimitAndLivesOn) {
  EchoService service;
  auto server = Server::Start({.max_receive_bytes = 1000}, {&service}).value();
  auto channel = Connect(*server);
  absl::Status status = Evict(channel, std::string(2000, 'x')).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("larger than max"));
  EXPECT_EQ(ErrorReason(Evict(channel, "small").status()), "NO_SUCH_MEMBER");
}

TEST(ServerTest, EndsACallAtItsDeadline) {
  EchoService service;
  auto server = Server::Start({}, {&service}).value();
  // No thread accepts from this socket's backlog: the connection hangs, as with a stopped process.
  auto silent = Acceptor::Listen({.host = "127.0.0.1", .port = 0}).value();
  auto channel = MakeChannel(silent->endpoint().ToString()).value();
  absl::Time start = Clock::Real()->Now();
  absl::Status status = Evict(channel, "x", absl::Milliseconds(200)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(Clock::Real()->Now() - start, absl::Seconds(5));
}

TEST(ServerTest, SaysUnavailableAtOnceWhenNobodyListens) {
  auto silent = Acceptor::Listen({.host = "127.0.0.1", .port = 0}).value();
  std::string address = silent->endpoint().ToString();
  silent->Stop();
  EXPECT_EQ(Evict(MakeChannel(address).value(), "x").status().code(), absl::StatusCode::kUnavailable);
}

TEST(ServerTest, StopsTwiceAndFreesItsPort) {
  EchoService service;
  auto server = Server::Start({}, {&service}).value();
  std::string address = server->address();
  server->Stop(absl::Seconds(1));
  server->Stop(absl::Seconds(1));
  auto again = Server::Start({.address = address}, {&service});
  EXPECT_TRUE(again.ok()) << again.status();
}

TEST(ServerTest, CancelsStreamsThatOutliveTheGraceOfStop) {
  EchoService service;
  auto server = Server::Start({}, {&service}).value();
  JoinClient client = JoinClient::Open(Connect(*server));
  client.stream->Write(TextRequest("hello"));
  ASSERT_TRUE(client.texts->WaitFor(1));
  server->Stop(absl::Milliseconds(50));
  EXPECT_EQ(service.ended().size(), 1u);  // Stop waits for the handlers
  ASSERT_TRUE(client.done->WaitFor(1));
  EXPECT_FALSE(client.done->All()[0].ok());
}

// Takes every descriptor that the process may still open, and releases all of them at the end.
class DescriptorHog {
 public:
  DescriptorHog() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit low = before_;
    low.rlim_cur = 256;
    setrlimit(RLIMIT_NOFILE, &low);
    int fd = -1;
    while ((fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) held_.push_back(fd);
  }
  ~DescriptorHog() {
    Release(held_.size());
    setrlimit(RLIMIT_NOFILE, &before_);
  }
  void Release(size_t count) {
    for (; count > 0 && !held_.empty(); --count, held_.pop_back()) close(held_.back());
  }

 private:
  rlimit before_ = {};
  std::vector<int> held_;
};

TEST(ServerTest, AcceptsAgainAfterFileDescriptorsRanOut) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan opens a pipe to look at an object and reports a bad one when it cannot";
#endif
  EchoService service;
  auto server = Server::Start({}, {&service}).value();
  ASSERT_EQ(ErrorReason(Evict(Connect(*server), "warm").status()), "NO_SUCH_MEMBER");
  {
    DescriptorHog hog;
    // Each round releases one descriptor, for the client's socket, and none for the server's end.
    for (int i = 0; i < 20; ++i) {
      hog.Release(1);
      EXPECT_FALSE(Evict(Connect(*server), "x", absl::Milliseconds(100)).ok());
    }
  }
  EXPECT_EQ(ErrorReason(Evict(Connect(*server), "after").status()), "NO_SUCH_MEMBER");
}

}  // namespace
}  // namespace syncopate::rpc
