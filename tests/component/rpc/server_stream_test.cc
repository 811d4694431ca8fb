#include "services/rpc/server_stream.h"

#include <gtest/gtest.h>

#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "services/rpc/unary.h"
#include "syncopate/v1/rollout.grpc.pb.h"
#include "tests/support/notification.h"

namespace syncopate::rpc {
namespace {

using TokenStream = ServerWriteStream<v1::GenerateStreamResponse>;

// Streams 0, 1, 2, ... with flow control, up to the first prompt token, or for "early" before gRPC has the stream. It
// answers Generate when the test says so.
class CountingService final : public v1::RolloutService::CallbackService {
 public:
  grpc::ServerWriteReactor<v1::GenerateStreamResponse>* GenerateStream(
      grpc::CallbackServerContext* context, const v1::GenerateStreamRequest* request) override {
    if (request->request().request_id() == "early") return StartAfterThree(context);
    auto stream = TokenStream::Create(context, {.max_queued_messages = 1});
    int count = request->request().prompt_ids(0);
    auto next = std::make_shared<int>(0);
    auto produce = [stream, next, count] {
      if (*next == count) {
        stream->Finish(absl::OutOfRangeError("no more"));
        return;
      }
      v1::GenerateStreamResponse response;
      response.set_token((*next)++);
      stream->Write(std::move(response));
    };
    auto* reactor =
        stream->Start({.on_drained = produce, .on_done = [this](const absl::Status& status) { ended_.Put(status); }});
    produce();
    return reactor;
  }

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext*, const v1::GenerateRequest* request,
                                     v1::GenerateResponse* response) override {
    auto call = UnaryCall::Create();
    response->set_request_id(request->request_id());
    if (request->request_id() == "early") call->Finish(absl::OkStatus());
    calls_.Put(call);
    return call->Start({.on_cancel = [this, call] {
      cancelled_.Put(true);
      call->Finish(absl::CancelledError("gone"));
    }});
  }

  Mailbox<absl::Status> ended_;
  Mailbox<std::shared_ptr<UnaryCall>> calls_;
  Mailbox<bool> cancelled_;

 private:
  static grpc::ServerWriteReactor<v1::GenerateStreamResponse>* StartAfterThree(grpc::CallbackServerContext* context) {
    auto stream = TokenStream::Create(context);
    for (int token = 0; token < 3; ++token) {
      v1::GenerateStreamResponse response;
      response.set_token(token);
      stream->Write(std::move(response));
    }
    return stream->Start({});
  }
};

class ServerStreamTest : public ::testing::Test {
 protected:
  CountingService service_;
  // Keepalive is off: a ping would make gRPC send data that it still keeps.
  std::unique_ptr<Server> server_ = Server::Start({.keepalive_time = absl::Hours(1)}, {&service_}).value();
  std::unique_ptr<v1::RolloutService::Stub> stub_ =
      v1::RolloutService::NewStub(MakeChannel(server_->address(), {.keepalive_time = absl::Hours(1)}).value());
};

TEST_F(ServerStreamTest, ProducesAsTheReaderReadsAndEndsWithItsStatus) {
  grpc::ClientContext context;
  context.set_deadline(CallDeadline(kTestDeadline));
  v1::GenerateStreamRequest request;
  request.mutable_request()->add_prompt_ids(300);
  auto reader = stub_->GenerateStream(&context, request);
  v1::GenerateStreamResponse response;
  int expected = 0;
  while (reader->Read(&response)) EXPECT_EQ(response.token(), expected++);
  EXPECT_EQ(expected, 300);
  EXPECT_EQ(FromGrpc(reader->Finish()), absl::OutOfRangeError("no more"));
  ASSERT_TRUE(service_.ended_.WaitFor(1));
  EXPECT_EQ(service_.ended_.All()[0], absl::OutOfRangeError("no more"));
}

TEST_F(ServerStreamTest, SendsWhatWasWrittenBeforeItStartedWithoutWaitingForItsEnd) {
  grpc::ClientContext context;
  context.set_deadline(CallDeadline(kTestDeadline));
  v1::GenerateStreamRequest request;
  request.mutable_request()->set_request_id("early");
  auto reader = stub_->GenerateStream(&context, request);
  v1::GenerateStreamResponse response;
  for (int expected = 0; expected < 3; ++expected) {
    ASSERT_TRUE(reader->Read(&response)) << FromGrpc(reader->Finish());
    EXPECT_EQ(response.token(), expected);
  }
  context.TryCancel();
}

TEST_F(ServerStreamTest, StopsProducingWhenTheReaderCancels) {
  grpc::ClientContext context;
  context.set_deadline(CallDeadline(kTestDeadline));
  v1::GenerateStreamRequest request;
  request.mutable_request()->add_prompt_ids(1 << 30);
  auto reader = stub_->GenerateStream(&context, request);
  v1::GenerateStreamResponse response;
  ASSERT_TRUE(reader->Read(&response));
  context.TryCancel();
  EXPECT_EQ(FromGrpc(reader->Finish()).code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(service_.ended_.WaitFor(1));
  EXPECT_EQ(service_.ended_.All()[0].code(), absl::StatusCode::kCancelled);
}

TEST_F(ServerStreamTest, AnswersAUnaryCallThatWasFinishedBeforeItStarted) {
  v1::GenerateRequest request;
  request.set_request_id("early");
  auto response = CallUnary(stub_.get(), &v1::RolloutService::Stub::Generate, request, kTestDeadline);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->request_id(), "early");
}

TEST_F(ServerStreamTest, TellsAUnaryHandlerThatItsClientGaveUp) {
  v1::GenerateRequest request;
  auto response = CallUnary(stub_.get(), &v1::RolloutService::Stub::Generate, request, absl::Milliseconds(200));
  EXPECT_EQ(response.status().code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(service_.cancelled_.WaitFor(1));
  service_.calls_.All()[0]->Finish(absl::OkStatus());  // a late answer does no harm
}

}  // namespace
}  // namespace syncopate::rpc
