// Generation while weights are pushed: generation does not stop between prepare and install, and every token carries
// the version that made it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/policy_version.h"
#include "services/wire/codec.h"
#include "syncopate/v1/rollout.grpc.pb.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::sync_overlap_test {
namespace {

constexpr int32_t kTokens = 250;

struct SeenToken {
  double unix_seconds = 0;  // when the token arrived at the test
  PolicyVersion version;
};

// The part of one sync in which the receiver's shadow arena is filled and verified while the old version serves.
struct Window {
  double begin = 0;  // unix seconds
  double end = 0;
  bool Holds(double time) const { return begin <= time && time <= end; }
};

// Streams one answer of exactly kTokens tokens; returns no tokens and fails the test if the stream breaks.
std::vector<SeenToken> StreamOneAnswer(const std::string& address) {
  auto stub = v1::RolloutService::NewStub(rpc::MakeChannel(address).value());
  v1::GenerateStreamRequest request;
  for (int32_t id : {8, 1, 2, 3, 4, 9}) request.mutable_request()->add_prompt_ids(id);
  request.mutable_request()->mutable_sampling()->set_temperature(1);
  request.mutable_request()->mutable_sampling()->set_max_new_tokens(kTokens);
  grpc::ClientContext context;
  context.set_deadline(rpc::CallDeadline(2 * kPatience));
  auto reader = stub->GenerateStream(&context, request);
  std::vector<SeenToken> tokens;
  v1::GenerateStreamResponse response;
  while (reader->Read(&response)) {
    tokens.push_back({1e-9 * static_cast<double>(absl::GetCurrentTimeNanos()), wire::FromProto(response.version())});
  }
  EXPECT_THAT(rpc::FromGrpc(reader->Finish()), IsOk());
  EXPECT_EQ(response.finish(), v1::FINISH_REASON_LENGTH);
  return tokens;
}

std::vector<Window> TransfersTo(const std::string& replica, const std::string& syncs) {
  std::vector<Window> windows;
  for (const Json& sync : JsonLines(syncs)) {
    if (sync["replica_id"] != replica || sync["result"] != "ok") continue;
    const Json& seconds = sync["seconds"];
    const double installed = sync["ended_unix_seconds"].get<double>();
    const double end = installed - seconds["install"].get<double>();
    windows.push_back({installed - seconds["total"].get<double>() + seconds["prepare"].get<double>(), end});
  }
  return windows;
}

TEST(SyncOverlapTest, TokensAreMadeBetweenPrepareAndInstallAndVersionsChangeMidAnswerWithoutAGap) {
  // The weights have some 58 MB, so that a transfer lasts many decode steps; the batches are so small that versions
  // come often.
  RunHarness run({"run.steps=1000000", "run.rollouters=1", "eval.every_steps=0", "checkpoint.every_steps=0",
                  "data.batch_groups=1", "rollout.samples=2", "rollout.max_sequences=4", "model.hidden_size=512",
                  "model.intermediate_size=1536", "model.num_hidden_layers=4", "model.num_attention_heads=8",
                  "model.num_key_value_heads=8", "model.head_dim=64", "model.max_position_embeddings=2048"});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(2), IsOk());
  auto rollouter = run.Endpoint("rollouter");
  ASSERT_THAT(rollouter, IsOk());

  const std::vector<SeenToken> tokens = StreamOneAnswer(rollouter->grpc);
  auto syncs = run.Ctl({"syncs", "--last", "1000", "--json"});
  ASSERT_THAT(syncs, IsOk());
  ASSERT_EQ(tokens.size(), static_cast<size_t>(kTokens));

  int changes = 0;
  for (size_t i = 1; i < tokens.size(); ++i) {
    EXPECT_GE(tokens[i].version, tokens[i - 1].version) << "token " << i;
    changes += tokens[i].version != tokens[i - 1].version ? 1 : 0;
  }
  EXPECT_GE(changes, 2);

  int64_t windows = 0, made = 0;
  for (const Window& window : TransfersTo("rollouter-0", syncs->output)) {
    if (window.begin < tokens.front().unix_seconds || window.end > tokens.back().unix_seconds) continue;
    ++windows;
    for (const SeenToken& token : tokens) made += window.Holds(token.unix_seconds) ? 1 : 0;
  }
  RecordProperty("transfers", absl::StrCat(windows));
  RecordProperty("tokens_during_transfers", absl::StrCat(made));
  EXPECT_GE(windows, 2);
  EXPECT_GE(made, windows) << "on average not one token during a transfer";
}

}  // namespace
}  // namespace syncopate::testing::sync_overlap_test
