#include "trainer/record/run_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/acceptor.h"
#include "base/clock.h"
#include "services/rpc/server.h"
#include "services/trainer/run_witnesses.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"

namespace syncopate::trainerd {
namespace {

using nlohmann::json;

synchronizer::SyncRecord Sync(const std::string& result, double seconds) {
  synchronizer::SyncRecord record;
  record.SetResult(result);
  record.seconds.total = seconds;
  record.bytes_by_kind.full = 10;
  return record;
}

trainer::RollouterFigures Alive(const std::string& replica, const std::string& incarnation, int64_t tokens) {
  return {.replica_id = replica,
          .incarnation = incarnation,
          .work = {.generated_tokens = tokens, .busy_seconds = 3, .idle_seconds = 1},
          .answered = true};
}

TEST(RunSummaryTest, SyncsThatANewerVersionTookOverHaveNotFailed) {
  trainer::RunWitnesses witnesses;
  for (const char* result : {"ok", "relabelled", "SUPERSEDED", "VERSION_NOT_STAGED", "DEADLINE"}) {
    witnesses.syncs.Add(Sync(result, 0.002));
  }
  const json syncs = trainer::MakeSummary({.status = "completed"}, witnesses)["syncs"];
  EXPECT_EQ(syncs["count"], 5);
  EXPECT_EQ(syncs["bytes"], 50);
  EXPECT_EQ(syncs["failed"], 1);
  EXPECT_EQ(syncs["superseded"], 2);
  EXPECT_EQ(syncs["relabelled"], 1);
  EXPECT_EQ(syncs["total_ms"]["p50"], 2);
}

TEST(RunSummaryTest, CountsTheTokensOfRolloutersThatAreGone) {
  trainer::SummaryInput input{.status = "completed"};
  input.flow.roster.AddProcess({"rollouter", "rollouter-0", 0, 1, "killed"});
  input.flow.roster.SetWork("killed",
                            {.generated_tokens = 500, .groups_submitted = 5, .busy_seconds = 1, .idle_seconds = 3});
  input.flow.roster.AddProcess({"rollouter", "rollouter-0", 0, 1, "restarted"});
  input.flow.roster.SetWork("restarted", {.generated_tokens = 20});  // tokens from before the summary asked
  trainer::RunWitnesses witnesses;
  witnesses.rollouters = {Alive("rollouter-0", "restarted", 40)};
  const json summary = trainer::MakeSummary(input, witnesses);
  EXPECT_EQ(summary["tokens"]["generated"], 540);
  EXPECT_EQ(summary["idle"]["rollouters"], 0.5);
  ASSERT_EQ(summary["rollouters"].size(), 2u);
  EXPECT_EQ(summary["rollouters"][0]["alive"], true);
  EXPECT_EQ(summary["rollouters"][1]["alive"], false);
  EXPECT_EQ(summary["rollouters"][1]["incarnation"], "killed");
  EXPECT_EQ(summary["rollouters"][1]["groups"], 5);
  EXPECT_TRUE(summary["eval"]["best"].is_null());
  EXPECT_TRUE(summary["eval"]["exact"]["best"].is_null());
}

TEST(RunSummaryTest, SaysWhyAnswersWereRefused) {
  trainer::SummaryInput input{.status = "completed"};
  input.flow.invalid = {{"BAD_LOGPROB", 3}};
  EXPECT_EQ(trainer::MakeSummary(input, {})["groups"]["invalid"]["BAD_LOGPROB"], 3);
}

TEST(RunSummaryTest, IsOfTheWholeRun) {
  trainer::SummaryInput input{.status = "stopped"};
  input.data.version = {3, 70};
  input.data.groups = {.accepted = 1, .trained = 1};  // of the last incarnation
  input.data.sums = {.accepted = 90, .trained = 80, .failed = 2, .staleness = {.tokens = {300, 100}, .groups = 80}};
  input.flow = {.wall_seconds = 60,
                .figures = {.step_seconds = 40, .wait_seconds = 10, .evaluations_made = 3, .evaluations_lost = 1},
                .reissued = 5,
                .failed_attempts = 4,
                .superseded = 6};
  const json summary = trainer::MakeSummary(input, {});
  EXPECT_EQ(summary["steps"], 70);
  EXPECT_EQ(summary["wall_seconds"], 60);
  EXPECT_EQ(summary["groups"]["acked"], 90);
  EXPECT_EQ(summary["groups"]["trained"], 80);
  EXPECT_EQ(summary["groups"]["generated"], 94);
  EXPECT_EQ(summary["groups"]["reissued"], 5);
  EXPECT_EQ(summary["groups"]["dropped"]["failed"], 2) << "groups, and not attempts";
  EXPECT_EQ(summary["groups"]["failed_attempts"], 4);
  EXPECT_EQ(summary["groups"]["superseded"], 6);
  EXPECT_EQ(summary["evaluations"]["made"], 3);
  EXPECT_EQ(summary["evaluations"]["lost"], 1);
  EXPECT_EQ(summary["tokens"]["trained"], 400);
  EXPECT_EQ(summary["staleness"]["mean"], 0.25);
  EXPECT_EQ(summary["idle"]["trainer"], 0.25);
}

TEST(RunSummaryTest, CountsCheckpointsAndNamesTheBestThatThereIs) {
  trainer::SummaryInput input{.status = "completed", .best_checkpoint = "e1-s40", .best_checkpoint_reward = 0.75};
  input.flow.figures = {.saved_checkpoints = 5, .failed_checkpoints = 2};
  const json checkpoints = trainer::MakeSummary(input, {})["checkpoints"];
  EXPECT_EQ(checkpoints, json::parse(R"({"saved":5,"failed":2,"best":"e1-s40","best_reward":0.75})"));
  EXPECT_TRUE(trainer::MakeSummary({.status = "completed"}, {})["checkpoints"]["best"].is_null());
}

TEST(RunSummaryTest, OneThatLacksTheStepOrSaysFailedOfARunThatIsCompleteIsNone) {
  trainer::SummaryInput input{.status = "completed"};
  input.data.version = {1, 70};
  const std::string whole = trainer::MakeSummary(input, {}).dump();
  EXPECT_TRUE(trainer::IsSummaryFor(whole, 70, "completed"));
  EXPECT_TRUE(trainer::IsSummaryFor(whole, 70, "stopped")) << "a resume that was stopped at once took nothing back";
  EXPECT_FALSE(trainer::IsSummaryFor(whole, 71, "completed"));
  EXPECT_FALSE(trainer::IsSummaryFor(R"({"status":"failed","run":{"outcome":"failed"}})", 70, "completed"))
      << "the summary of a trainer that died before it could write one";
  EXPECT_FALSE(trainer::IsSummaryFor(R"({"status":"failed","steps":70})", 70, "completed"));
  for (const char* text : {"", "[]", "{", "null"}) EXPECT_FALSE(trainer::IsSummaryFor(text, 0, "completed")) << text;
}

// Lists rollouters at one address.
class ListingService final : public v1::SynchronizerService::Service {
 public:
  ListingService(std::string address, int rollouters) : address_(std::move(address)), rollouters_(rollouters) {}

  grpc::Status ListMembers(grpc::ServerContext*, const v1::ListMembersRequest*,
                           v1::ListMembersResponse* response) override {
    for (int i = 0; i < rollouters_; ++i) {
      v1::MemberStatus* member = response->add_members();
      member->mutable_member()->set_role(v1::ROLE_ROLLOUTER);
      member->mutable_member()->set_replica_id(absl::StrCat("rollouter-", i));
      member->set_state(v1::MEMBER_STATE_ALIVE);
      member->set_address(address_);
    }
    return grpc::Status::OK;
  }
  grpc::Status GetStatus(grpc::ServerContext*, const v1::SynchronizerServiceGetStatusRequest*,
                         v1::SynchronizerServiceGetStatusResponse* response) override {
    (*response->mutable_syncs()->mutable_counts())["ok"] = 16000;  // more syncs than the synchronizer can list
    return grpc::Status::OK;
  }

 private:
  const std::string address_;
  const int rollouters_;
};

TEST(RunSummaryTest, RolloutersThatDoNotAnswerAreWaitedForTogether) {
  // The kernel accepts the connections, and no process ever writes to them.
  auto mute = Acceptor::Listen({.host = "127.0.0.1", .port = 0});
  ASSERT_TRUE(mute.ok());
  ListingService listing((*mute)->endpoint().ToString(), 8);
  auto server = rpc::Server::Start({}, {&listing});
  ASSERT_TRUE(server.ok());
  const absl::Time begin = Clock::Real()->Now();
  const auto client = SynchronizerClient::Create({.address = (*server)->address(), .secret = MemberSecret::Draw()});
  ASSERT_TRUE(client.ok());
  const trainer::RunWitnesses witnesses = AskWitnesses(client->get(), nullptr);
  EXPECT_TRUE(witnesses.rollouters.empty());
  EXPECT_EQ(witnesses.syncs.count(), 16000);
  EXPECT_LT(Clock::Real()->Now() - begin, absl::Seconds(4));
}

}  // namespace
}  // namespace syncopate::trainerd
