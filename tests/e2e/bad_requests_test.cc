// Peers that send invalid requests or do not read: each such peer gets the reason, and all others go on.

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "syncopate/v1/rollout.grpc.pb.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::bad_requests_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using v1::RolloutService;

constexpr int32_t kContext = 16384;

v1::GenerateRequest Request(int32_t max_new_tokens) {
  v1::GenerateRequest request;
  for (int32_t id : {8, 1, 2, 3, 4, 9}) request.add_prompt_ids(id);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_max_new_tokens(max_new_tokens);
  return request;
}

TEST(RolloutRequestsTest, BeforeTheFirstSyncGenerateIsRefusedAndEverythingElseAnswers) {
  RunHarness run;
  auto synchronizer = run.StartDaemon("synchronizer");
  ASSERT_THAT(synchronizer, IsOk());
  auto rollouter = run.StartDaemon("rollouter");
  ASSERT_THAT(rollouter, IsOk());
  const std::string address = run.Endpoint("rollouter")->grpc;

  auto refused = Call<RolloutService>(address, &RolloutService::Stub::Generate, Request(5));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused, HasReason("NO_WEIGHTS"));
  for (int i = 0; i < 2; ++i) {
    auto rollout_mode = Call<RolloutService>(address, &RolloutService::Stub::RolloutMode, {});
    ASSERT_THAT(rollout_mode, IsOk());
    EXPECT_FALSE(rollout_mode->acted());
    auto trainer_mode = Call<RolloutService>(address, &RolloutService::Stub::TrainerMode, {});
    ASSERT_THAT(trainer_mode, IsOk());
    EXPECT_FALSE(trainer_mode->acted());
  }
  auto status = Call<RolloutService>(address, &RolloutService::Stub::GetStatus, {});
  ASSERT_THAT(status, IsOk());
  EXPECT_EQ(status->state(), "waiting_for_weights");
  EXPECT_EQ(status->generated_tokens(), 0);
}

// A connection that takes at most 64 KiB ahead of its reader.
std::shared_ptr<grpc::Channel> NarrowChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1 << 16);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// A run with rollouter-0. The model is tiny and its context long, so that answers soon fill the buffers.
class LiveRunTest : public ::testing::Test {
 protected:
  LiveRunTest()
      : run_({"run.steps=1000000", "eval.every_steps=0", "checkpoint.every_steps=0", "rollout.max_sequences=32",
              "rollout.samples=4", "data.batch_groups=4", "model.hidden_size=16", "model.intermediate_size=16",
              "model.num_hidden_layers=1", "model.num_attention_heads=1", "model.num_key_value_heads=1",
              absl::StrCat("model.max_position_embeddings=", kContext)}) {}

  void SetUp() override {
    for (const char* role : {"synchronizer", "trainer", "rollouter"}) {
      auto daemon = run_.StartDaemon(role);
      ASSERT_THAT(daemon, IsOk());
      daemons_[role] = *std::move(daemon);
    }
    ASSERT_THAT(run_.AwaitStep(2), IsOk());
    address_ = run_.Endpoint("rollouter")->grpc;
  }
  void ExpectTheRunGoesOn() {
    EXPECT_THAT(run_.AwaitStep(run_.LastStep() + 5), IsOk());
    for (const auto& [role, daemon] : daemons_) EXPECT_TRUE(daemon->Running()) << role << "\n" << daemon->Log();
    EXPECT_THAT(Call<RolloutService>(address_, &RolloutService::Stub::Generate, Request(3)), IsOk());
  }

  // The number of GenerateStream calls that the rollouter has ended, with OK or with an error.
  int64_t StreamsEnded(bool well) {
    auto text = HttpGet(run_.Endpoint("rollouter")->metrics, "/metrics");
    EXPECT_THAT(text, IsOk());
    double ended = 0;
    for (absl::string_view line : absl::StrSplit(text.value_or(""), '\n')) {
      if (!absl::StartsWith(line, "grpc_server_handled_total{")) continue;
      if (!absl::StrContains(line, "\"GenerateStream\"") || absl::StrContains(line, "\"OK\"") != well) continue;
      double count = 0;
      EXPECT_TRUE(absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &count)) << line;
      ended += count;
    }
    return static_cast<int64_t>(ended);
  }

  RunHarness run_;
  std::map<std::string, std::unique_ptr<Process>> daemons_;
  std::string address_;
};

TEST_F(LiveRunTest, RequestsBeyondTheLimitsAreRefusedAndTheDaemonLives) {
  v1::GenerateRequest long_prompt = Request(5);
  for (int i = 0; i < 100000; ++i) long_prompt.add_prompt_ids(1);
  EXPECT_EQ(Call<RolloutService>(address_, &RolloutService::Stub::Generate, long_prompt).status().code(),
            absl::StatusCode::kInvalidArgument);

  v1::GenerateRequest unknown_token = Request(5);
  unknown_token.add_prompt_ids(1 << 20);
  EXPECT_EQ(Call<RolloutService>(address_, &RolloutService::Stub::Generate, unknown_token).status().code(),
            absl::StatusCode::kInvalidArgument);

  v1::GenerateRequest empty;
  EXPECT_EQ(Call<RolloutService>(address_, &RolloutService::Stub::Generate, empty).status().code(),
            absl::StatusCode::kInvalidArgument);

  // The ids take 80 MB: more than the server's limit for one message, so the client's own limit must be larger.
  v1::GenerateRequest oversized = Request(5);
  for (int i = 0; i < (80 << 20); ++i) oversized.mutable_prompt_ids()->Add(1);
  auto channel = rpc::MakeChannel(address_, {.max_send_bytes = 256 << 20});
  ASSERT_THAT(channel, IsOk());
  auto stub = RolloutService::NewStub(*channel);
  EXPECT_EQ(rpc::CallUnary(stub.get(), &RolloutService::Stub::Generate, oversized, kPatience).status().code(),
            absl::StatusCode::kResourceExhausted);
  ExpectTheRunGoesOn();
}

TEST_F(LiveRunTest, ARollouterTouchesNoCheckpoint) {
  v1::LoadCheckpointRequest load;
  load.set_path(run_.Path("checkpoints"));
  auto loaded = Call<RolloutService>(address_, &RolloutService::Stub::LoadCheckpoint, load);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(loaded, HasReason("NO_ACTOR"));
  v1::RolloutServiceSaveCheckpointRequest save;
  save.set_path(run_.Path("from-a-rollouter"));
  EXPECT_THAT(Call<RolloutService>(address_, &RolloutService::Stub::SaveCheckpoint, save), HasReason("NO_ACTOR"));
  EXPECT_FALSE(std::ifstream(run_.Path("from-a-rollouter")).good());
  ExpectTheRunGoesOn();
}

TEST_F(LiveRunTest, ClientsThatNeverReadAreDroppedAndNobodyElseWaits) {
  struct Deaf {
    grpc::ClientContext context;
    std::unique_ptr<RolloutService::Stub> stub;
    std::unique_ptr<grpc::ClientReader<v1::GenerateStreamResponse>> reader;
  };
  std::vector<std::unique_ptr<Deaf>> clients;
  for (int i = 0; i < 4; ++i) {
    auto client = std::make_unique<Deaf>();
    client->context.set_deadline(rpc::CallDeadline(2 * kPatience));
    client->stub = RolloutService::NewStub(NarrowChannel(address_));
    v1::GenerateStreamRequest request;
    *request.mutable_request() = Request(kContext);
    request.mutable_request()->set_request_id(absl::StrCat("deaf-", i));
    client->reader = client->stub->GenerateStream(&client->context, request);
    clients.push_back(std::move(client));
  }
  ExpectTheRunGoesOn();
  // A client that does not read loses its stream long before the answer is complete.
  EXPECT_TRUE(Eventually(2 * kPatience, [&] { return StreamsEnded(/*well=*/false) == 4; }));
  EXPECT_EQ(StreamsEnded(/*well=*/true), 0);
  // Generation for the broken streams is stopped, too: their names are free again.
  v1::GenerateRequest again = Request(1);
  again.set_request_id("deaf-0");
  EXPECT_TRUE(Eventually(kPatience,
                         [&] { return Call<RolloutService>(address_, &RolloutService::Stub::Generate, again).ok(); }));
  ExpectTheRunGoesOn();
}

TEST_F(LiveRunTest, ARollouterWithAnotherModelIsRefusedNamingTheTensorWhileTheOthersGoOn) {
  auto other = run_.LaunchDaemon("rollouter", 7, {"model.hidden_size=32"});
  ASSERT_THAT(other, IsOk());
  auto exit = (*other)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 2);  // a second start would be refused, too
  EXPECT_THAT((*other)->Log(), AllOf(HasSubstr("MODEL_MISMATCH"), HasSubstr("model.embed_tokens.weight")));
  ExpectTheRunGoesOn();
  auto syncs = run_.Ctl({"syncs", "--last", "1000", "--json"});
  ASSERT_THAT(syncs, IsOk());
  EXPECT_THAT(syncs->output, Not(HasSubstr("rollouter-7")));
}

TEST_F(LiveRunTest, ARollouterOfAnotherRunIsRefused) {
  auto other = run_.LaunchDaemon("rollouter", 7, {"run.id=another-run"});
  ASSERT_THAT(other, IsOk());
  auto exit = (*other)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 1);
  EXPECT_THAT((*other)->Log(), HasSubstr("another-run"));
  ExpectTheRunGoesOn();
}

}  // namespace
}  // namespace syncopate::testing::bad_requests_test
