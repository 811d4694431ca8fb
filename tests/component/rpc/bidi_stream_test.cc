#include "services/rpc/bidi_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "services/rpc/channel.h"
#include "tests/component/rpc/echo_service.h"

namespace syncopate::rpc {
namespace {

std::shared_ptr<grpc::Channel> Connect(const Server& server) { return MakeChannel(server.address()).value(); }

std::vector<std::string> Numbers(int count) {
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) texts.push_back(absl::StrCat(i));
  return texts;
}

TEST(BidiStreamTest, DeliversEveryMessageInOrderBothWays) {
  EchoService service;
  auto server = Server::Start({}, {&service}).value();
  JoinClient client = JoinClient::Open(Connect(*server));
  for (const std::string& text : Numbers(500)) EXPECT_TRUE(client.stream->Write(TextRequest(text)));
  ASSERT_TRUE(client.texts->WaitFor(500));
  EXPECT_EQ(client.texts->All(), Numbers(500));
}

TEST(BidiStreamTest, EndsWithOkWhenTheClientHalfCloses) {
  EchoService service;
  auto server = Server::Start({}, {&service}).value();
  JoinClient client = JoinClient::Open(Connect(*server));
  for (const std::string& text : Numbers(50)) client.stream->Write(TextRequest(text));
  client.stream->Finish();
  EXPECT_FALSE(client.stream->Write(TextRequest("late")));
  ASSERT_TRUE(client.done->WaitFor(1));
  EXPECT_EQ(client.done->All()[0], absl::OkStatus());
  EXPECT_EQ(client.texts->All(), Numbers(50));  // queued messages arrived before the end
  ASSERT_TRUE(service.ended().WaitFor(1));
  EXPECT_EQ(service.ended().All()[0], absl::OkStatus());
}

TEST(BidiStreamTest, GivesTheServersErrorToBothEndsAfterWhatWasQueued) {
  absl::Status fenced = Error(absl::StatusCode::kFailedPrecondition, "FENCED", "epoch 1 is over", {{"epoch", "2"}});
  EchoService service;
  service.set_on_message([fenced](const std::shared_ptr<JoinServerStream>& stream, JoinRequest) {
    for (const std::string& text : Numbers(20)) stream->Write(TextResponse(text));
    stream->Finish(fenced);
    EXPECT_FALSE(stream->Write(TextResponse("late")));
    stream->Finish(absl::OkStatus());  // this comes too late: the first end counts
  });
  auto server = Server::Start({}, {&service}).value();
  JoinClient client = JoinClient::Open(Connect(*server));
  client.stream->Write(TextRequest("hello"));
  client.stream->Write(TextRequest("not delivered after the end"));
  ASSERT_TRUE(client.done->WaitFor(1));
  EXPECT_EQ(client.texts->All(), Numbers(20));
  EXPECT_EQ(client.done->All()[0], fenced);
  ASSERT_TRUE(service.ended().WaitFor(1));
  EXPECT_EQ(service.ended().All()[0], fenced);
}

TEST(BidiStreamTest, TellsTheServerWhenTheClientCancels) {
  EchoService service;
  auto server = Server::Start({}, {&service}).value();
  JoinClient client = JoinClient::Open(Connect(*server));
  client.stream->Write(TextRequest("hello"));
  ASSERT_TRUE(client.texts->WaitFor(1));
  client.stream->Cancel();
  ASSERT_TRUE(client.done->WaitFor(1));
  EXPECT_EQ(client.done->All()[0].code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(service.ended().WaitFor(1));
  EXPECT_EQ(service.ended().All()[0].code(), absl::StatusCode::kCancelled);
}

TEST(BidiStreamTest, TellsTheClientWhenTheServerCancels) {
  EchoService service;
  auto server = Server::Start({}, {&service}).value();
  JoinClient client = JoinClient::Open(Connect(*server));
  ASSERT_TRUE(service.streams().WaitFor(1));
  service.streams().All()[0]->Cancel();
  ASSERT_TRUE(client.done->WaitFor(1));
  EXPECT_EQ(client.done->All()[0].code(), absl::StatusCode::kCancelled);
}

TEST(BidiStreamTest, DoesNothingWhenUsedAfterItsEnd) {
  EchoService service;
  auto server = Server::Start({}, {&service}).value();
  JoinClient client = JoinClient::Open(Connect(*server));
  client.stream->Write(TextRequest("hello"));
  ASSERT_TRUE(client.texts->WaitFor(1));
  client.stream->Cancel();
  ASSERT_TRUE(client.done->WaitFor(1));
  ASSERT_TRUE(service.ended().WaitFor(1));
  auto stream = service.streams().All()[0];
  EXPECT_FALSE(stream->Write(TextResponse("x")));
  stream->Finish(absl::OkStatus());
  stream->Cancel();
  EXPECT_FALSE(client.stream->Write(TextRequest("x")));
  client.stream->Finish();
  client.stream->Cancel();
  EXPECT_EQ(service.ended().size(), 1u);
  EXPECT_EQ(client.done->size(), 1u);
}

TEST(BidiStreamTest, SaysUnavailableWhenNobodyListens) {
  EchoService service;
  auto server = Server::Start({}, {&service}).value();
  auto channel = Connect(*server);
  server->Stop(absl::ZeroDuration());
  JoinClient client = JoinClient::Open(channel);
  client.stream->Write(TextRequest("hello"));
  ASSERT_TRUE(client.done->WaitFor(1));
  EXPECT_EQ(client.done->All()[0].code(), absl::StatusCode::kUnavailable);
}

// A client written with the bare API that never asks for a message.
class NeverReads final : public grpc::ClientBidiReactor<JoinRequest, JoinResponse> {
 public:
  explicit NeverReads(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::SynchronizerService::NewStub(channel)), request_(TextRequest("go")) {
    stub_->async()->Join(&context_, this);
    StartWrite(&request_);
    StartCall();
  }
  void OnDone(const grpc::Status& status) override { done_.Put(FromGrpc(status)); }
  ~NeverReads() override {
    context_.TryCancel();  // gRPC does not report the end while there are messages to read
    EXPECT_TRUE(done_.WaitFor(1));
  }

 private:
  std::unique_ptr<v1::SynchronizerService::Stub> stub_;
  grpc::ClientContext context_;
  JoinRequest request_;
  Mailbox<absl::Status> done_;
};

TEST(BidiStreamTest, DropsAClientThatNeverReadsWhenItsTimeIsUp) {
  EchoService service({.stalled_after = absl::Milliseconds(300)});
  service.set_on_message([](const std::shared_ptr<JoinServerStream>& stream, JoinRequest) {
    // More than any flow-control window.
    for (int i = 0; i < 8; ++i) stream->Write(TextResponse(std::string(1 << 20, 'x')));
  });
  auto server = Server::Start({}, {&service}).value();
  NeverReads client(Connect(*server));
  ASSERT_TRUE(service.ended().WaitFor(1));
  EXPECT_EQ(ErrorReason(service.ended().All()[0]), "SLOW_READER");
}

TEST(BidiStreamTest, ACallThatWasToEndWellDoesNotIfItsClientNeverReads) {
  EchoService service({.stalled_after = absl::Milliseconds(300)});
  service.set_on_message([](const std::shared_ptr<JoinServerStream>& stream, JoinRequest) {
    // More than any flow-control window.
    for (int i = 0; i < 8; ++i) stream->Write(TextResponse(std::string(1 << 20, 'x')));
    stream->Finish(absl::OkStatus());
  });
  auto server = Server::Start({}, {&service}).value();
  NeverReads client(Connect(*server));
  ASSERT_TRUE(service.ended().WaitFor(1));
  EXPECT_EQ(ErrorReason(service.ended().All()[0]), "SLOW_READER");
}

TEST(BidiStreamTest, BreaksOffAClientThatFallsSilentAndKeepsOneThatIsHeard) {
  EchoService service({.silent_after = absl::Milliseconds(300)});
  auto server = Server::Start({}, {&service}).value();
  JoinClient silent = JoinClient::Open(Connect(*server));
  silent.stream->Write(TextRequest("hello"));
  JoinClient lively = JoinClient::Open(Connect(*server));
  while (silent.done->size() == 0) {
    size_t heard = lively.texts->size();
    lively.stream->Write(TextRequest("still here"));
    ASSERT_TRUE(lively.texts->WaitFor(heard + 1));
  }
  ASSERT_TRUE(service.ended().WaitFor(1));
  EXPECT_EQ(service.ended().All()[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(service.ended().All()[0]), "SILENT");
  EXPECT_EQ(ErrorReason(silent.done->All()[0]), "SILENT") << "the client gets the reason";
  EXPECT_EQ(lively.done->size(), 0u);
}

TEST(BidiStreamTest, BoundsWhatItHoldsForASlowReaderAndServesTheOthers) {
  EchoService service({.max_queued_messages = 4, .max_queued_bytes = 4 << 20, .stalled_after = absl::Seconds(1)});
  std::atomic<int> accepted = 0;
  service.set_on_message([&accepted](const std::shared_ptr<JoinServerStream>& stream, JoinRequest request) {
    if (request.leave().reason() != "go") {
      stream->Write(TextResponse("echo"));
      return;
    }
    while (stream->Write(TextResponse(std::string(1 << 20, 'x')))) ++accepted;
  });
  auto server = Server::Start({}, {&service}).value();
  NeverReads slow(Connect(*server));
  JoinClient other = JoinClient::Open(Connect(*server));
  other.stream->Write(TextRequest("hello"));
  ASSERT_TRUE(other.texts->WaitFor(1));
  ASSERT_TRUE(service.ended().WaitFor(1));
  EXPECT_EQ(service.ended().All()[0].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LE(accepted, 40);
  other.stream->Write(TextRequest("still there"));
  EXPECT_TRUE(other.texts->WaitFor(2));
}

TEST(BidiStreamTest, RefusesAnOversizedMessageAndTheServerLivesOn) {
  EchoService service;
  auto server = Server::Start({.max_receive_bytes = 1000}, {&service}).value();
  auto channel = Connect(*server);
  JoinClient big = JoinClient::Open(channel);
  big.stream->Write(TextRequest(std::string(5000, 'x')));
  ASSERT_TRUE(big.done->WaitFor(1));
  EXPECT_EQ(big.done->All()[0].code(), absl::StatusCode::kResourceExhausted) << big.done->All()[0];
  JoinClient small = JoinClient::Open(channel);
  small.stream->Write(TextRequest("small"));
  EXPECT_TRUE(small.texts->WaitFor(1));
}

// Three threads use one stream at once: both ends write while the third thread ends the stream in a random way.
void RunOneRandomStream(const std::shared_ptr<grpc::Channel>& channel, uint32_t seed) {
  std::mt19937 random(seed);
  int messages = static_cast<int>(random() % 40);
  int moment = messages == 0 ? 0 : static_cast<int>(random() % messages);
  int way = static_cast<int>(random() % 5);
  JoinClient client = JoinClient::Open(channel);
  for (int i = 0; i < messages; ++i) {
    // The text tells the server how to end.
    bool now = i == moment;
    client.stream->Write(TextRequest(now && way == 1 ? "finish" : now && way == 2 ? "cancel" : "echo"));
    if (now && way == 3) client.stream->Cancel();
    if (now && way == 4) break;  // drops its handle while the stream is open
  }
  if (way == 4) {
    client.stream->Cancel();
    client.stream.reset();
  } else {
    client.stream->Finish();
  }
  ASSERT_TRUE(client.done->WaitFor(1)) << "seed " << seed;
}

TEST(BidiStreamTest, SurvivesRandomEndsFromBothSidesUnderLoad) {
  EchoService service;
  service.set_on_message([](const std::shared_ptr<JoinServerStream>& stream, JoinRequest request) {
    const std::string& what = request.leave().reason();
    for (int i = 0; i < 3; ++i) stream->Write(TextResponse(what));
    if (what == "finish") stream->Finish(absl::AbortedError("told to"));
    if (what == "cancel") stream->Cancel();
  });
  auto server = Server::Start({.max_concurrent_streams = 1000}, {&service}).value();
  constexpr int kThreads = 4, kStreams = 150;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&server, t] {
      auto channel = Connect(*server);
      for (int i = 0; i < kStreams; ++i) RunOneRandomStream(channel, static_cast<uint32_t>(t * kStreams + i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  // A call that is cancelled before the server saw it never becomes a stream there. Every call that became a stream
  // ends exactly once.
  server->Stop(absl::Seconds(5));
  EXPECT_EQ(service.ended().size(), service.streams().size());
  EXPECT_GT(service.streams().size(), 0u);
}

TEST(BidiStreamTest, SurvivesAServerThatIsStoppedUnderLoad) {
  for (int round = 0; round < 10; ++round) {
    EchoService service;
    auto server = Server::Start({}, {&service}).value();
    auto channel = Connect(*server);
    std::vector<JoinClient> clients;
    for (int i = 0; i < 8; ++i) clients.push_back(JoinClient::Open(channel));
    std::thread writer([&clients] {
      for (int i = 0; i < 200; ++i) {
        for (JoinClient& client : clients) client.stream->Write(TextRequest("load"));
      }
    });
    ASSERT_TRUE(clients[0].texts->WaitFor(1));
    server->Stop(absl::ZeroDuration());
    writer.join();
    for (JoinClient& client : clients) EXPECT_TRUE(client.done->WaitFor(1));
    EXPECT_EQ(service.ended().size(), service.streams().size());
  }
}

TEST(BidiStreamTest, WritesFromManyThreadsWithoutLosingOne) {
  EchoService service({.max_queued_messages = 100000});
  auto server = Server::Start({}, {&service}).value();
  JoinClient client = JoinClient::Open(Connect(*server), {.max_queued_messages = 100000});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&client] {
      for (int i = 0; i < 1000; ++i) EXPECT_TRUE(client.stream->Write(TextRequest("x")));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(client.texts->WaitFor(4000));
}

}  // namespace
}  // namespace syncopate::rpc
