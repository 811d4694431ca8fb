#include "rollouter/reward/group_score.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "absl/strings/match.h"

namespace syncopate::rollouter {
namespace {

using Remote = GroupScore::Remote;
using Rewards = RemoteScorer::Rewards;

Lease MakeLease(const std::string& row = R"({"ground_truth": "x^2"})") {
  Lease lease;
  lease.id = {{1, 7}, 2};
  lease.samples = 3;
  lease.prompt_ids = {8, 9};
  lease.answer_ids = {2, 1};
  lease.task.row_json = row;
  lease.sampling.max_new_tokens = 8;
  return lease;
}

TrajectoryGroup MakeGroup() {
  TrajectoryGroup group;
  group.samples.resize(3);
  group.samples[0].tokens = {2, 1};
  group.samples[1].tokens = {2, 3};
  group.samples[2].tokens = {4, 4};
  group.samples[1].reward = 0.25f;  // the reward from its environment
  return group;
}

// The text of tokens, such as "2,1".
std::string Decode(const std::vector<int32_t>& tokens) {
  std::string text;
  for (const int32_t token : tokens) text += (text.empty() ? "" : ",") + std::to_string(token);
  return text;
}

RemoteReward Worth(float value) { return {.value = value}; }

class GroupScoreTest : public ::testing::Test {
 protected:
  GroupScore& Begin(const std::string& formula, const Lease& lease = MakeLease()) {
    RewardRegistry registry = RewardRegistry::BuiltIn();
    auto puzzled = [](const RewardInput& input) -> absl::StatusOr<RewardValue> {
      return RewardValue{.value = 0, .undecided = input.text != "2,1"};
    };
    EXPECT_TRUE(registry.Register("regex", puzzled, true).ok());  // a name that formulas accept
    plan_ = RewardPlan::Create(formula, registry, Decode).value();
    score_.emplace("lease", lease, MakeGroup(), &plan_, rules_);
    score_->JudgeBuiltIn(now_);
    return *score_;
  }
  GroupScore::Actions Tick(absl::Duration later = absl::ZeroDuration()) {
    now_ += later;
    return score_->OnTick(now_, [this](Remote, const std::string&) { return there_; });
  }
  // Returns the only call of a tick.
  RemoteItem OnlyCall(absl::Duration later = absl::ZeroDuration()) {
    GroupScore::Actions actions = Tick(later);
    EXPECT_EQ(actions.calls.size(), 1u);
    return actions.calls.empty() ? RemoteItem() : actions.calls[0].item;
  }
  void Answer(const RemoteItem& item, absl::StatusOr<Rewards> rewards) { score_->OnAnswer(item.id, rewards, now_); }
  std::string FailsWith() { return ErrorReason(score_->Finish().status()); }

  ScoringRules rules_{.timeout = absl::Seconds(10), .attempts = 3, .pause = absl::Seconds(1)};
  RewardPlan plan_;
  std::optional<GroupScore> score_;
  absl::Time now_ = absl::UnixEpoch();
  absl::Status there_;
};

TEST_F(GroupScoreTest, KeepsTheAnswerThatTheFirstTermFoundCutToItsLength) {
  const std::string longest(kMaxExtractedBytes - 1, 'x');
  Begin("dense + python:check");
  const GroupScore::Actions actions = Tick();
  ASSERT_EQ(actions.calls.size(), 1u);
  score_->OnAnswer(
      actions.calls[0].item.id,
      RemoteScorer::Rewards{RemoteReward{.value = 1, .components = {}, .extracted = "7"},
                            RemoteReward{.value = 0, .components = {}, .extracted = longest + "é"}, Worth(0)},
      now_);
  const TrajectoryGroup group = score_->Finish().value();
  EXPECT_EQ(group.samples[0].extracted, "7");
  EXPECT_EQ(group.samples[1].extracted, longest) << "no half of a character";
  EXPECT_EQ(group.samples[2].extracted, "");
}

TEST_F(GroupScoreTest, SumsWhatTheTermsGiveAndKeepsEachAsItWas) {
  GroupScore& score = Begin("dense + -0.5*exact");
  ASSERT_TRUE(score.done());
  const TrajectoryGroup group = score.Finish().value();
  EXPECT_FLOAT_EQ(group.samples[0].reward, 0.5f);
  EXPECT_FLOAT_EQ(group.samples[1].reward, 0.5f);
  EXPECT_FLOAT_EQ(group.samples[2].reward, 0);
  EXPECT_EQ(group.samples[0].reward_parts, (std::vector<RewardPart>{{"dense", 1}, {"exact", 1}}));
}

TEST_F(GroupScoreTest, WhatAnEnvironmentGaveIsATermAmongOthers) {
  GroupScore& score = Begin("2*environment + dense");
  ASSERT_TRUE(score.done());
  const TrajectoryGroup group = score.Finish().value();
  EXPECT_FLOAT_EQ(group.samples[0].reward, 1);
  EXPECT_FLOAT_EQ(group.samples[1].reward, 1);
  EXPECT_EQ(group.samples[1].reward_parts, (std::vector<RewardPart>{{"environment", 0.25f}, {"dense", 0.5f}}));
}

TEST_F(GroupScoreTest, AsksForTextOnceAndTellsWhereEachAnswerEnded) {
  Begin("dense + python:judge");
  const RemoteItem item = OnlyCall();
  EXPECT_EQ(item.reward, "judge");
  EXPECT_EQ(item.texts, (std::vector<std::string>{"2,1", "2,3", "4,4"}));
  EXPECT_EQ(item.finishes.size(), 3u);
  EXPECT_EQ(item.row_json, R"({"ground_truth": "x^2"})");
  EXPECT_EQ(item.budget, absl::Seconds(10));
  EXPECT_TRUE(Tick().calls.empty()) << "the call is in progress";
  Answer(item, Rewards{Worth(1), Worth(2), Worth(3)});
  ASSERT_TRUE(score_->done());
  EXPECT_FLOAT_EQ(score_->Finish()->samples[1].reward, 2.5f);
}

TEST_F(GroupScoreTest, AsksAgainForWhatFailedAndNotForTheRest) {
  Begin("python:judge");
  RemoteItem item = OnlyCall();
  Answer(item, Rewards{Worth(1), absl::InternalError("it broke"), Worth(3)});
  EXPECT_FALSE(score_->done());
  EXPECT_TRUE(Tick().calls.empty()) << "after a pause";
  item = OnlyCall(absl::Seconds(1));
  EXPECT_EQ(item.texts, (std::vector<std::string>{"2,3"}));
  Answer(item, Rewards{Worth(2)});
  EXPECT_FLOAT_EQ(score_->Finish()->samples[1].reward, 2);
}

TEST_F(GroupScoreTest, FailsAfterAsManyAttempts) {
  Begin("python:judge");
  std::vector<std::string> ids;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const RemoteItem item = OnlyCall(absl::Seconds(1));
    ids.push_back(item.id);
    Answer(item, absl::InternalError("ZeroDivisionError"));
  }
  ASSERT_TRUE(score_->done());
  const absl::Status failed = score_->Finish().status();
  EXPECT_EQ(ErrorReason(failed), "REWARD_FAILED");
  EXPECT_TRUE(absl::StrContains(failed.message(), "python:judge of group 1/7 failed: ZeroDivisionError"));
  EXPECT_NE(ids[0], ids[1]) << "so that a late answer is not taken for another's";
}

TEST_F(GroupScoreTest, EndsACallThatHangsAndMakesItAgain) {
  Begin("python:judge");
  const RemoteItem first = OnlyCall();
  EXPECT_EQ(score_->NextTick(), now_ + absl::Seconds(10));
  GroupScore::Actions actions = Tick(absl::Seconds(10));
  ASSERT_EQ(actions.cancels.size(), 1u);
  EXPECT_EQ(actions.cancels[0].second, first.id);
  const RemoteItem second = OnlyCall(absl::Seconds(1));
  Answer(first, Rewards{Worth(9), Worth(9), Worth(9)});  // this answer comes too late
  EXPECT_FALSE(score_->done());
  Answer(second, Rewards{Worth(1), Worth(2), Worth(3)});
  EXPECT_FLOAT_EQ(score_->Finish()->samples[0].reward, 1);
}

TEST_F(GroupScoreTest, WhatNoRewardGivesIsAFailureThatIsNotTriedAgain) {
  for (float value : {std::numeric_limits<float>::quiet_NaN(), 1.1e30f, -1.1e30f}) {
    Begin("python:judge");
    Answer(OnlyCall(), Rewards{Worth(1), Worth(value), Worth(3)});
    ASSERT_TRUE(score_->done()) << value;
    EXPECT_EQ(FailsWith(), "REWARD_FAILED") << value;
  }
}

TEST_F(GroupScoreTest, AnAnswerForTooFewIsAFailure) {
  rules_.attempts = 1;
  Begin("http");
  Answer(OnlyCall(), Rewards{Worth(1)});
  EXPECT_EQ(FailsWith(), "REWARD_FAILED");
}

TEST_F(GroupScoreTest, WaitsForAnUnreachableScorerAndHandsTheGroupBackUnharmed) {
  there_ = absl::UnavailableError("no worker at unix:/x");
  Begin("python:judge");
  EXPECT_TRUE(Tick().calls.empty());
  EXPECT_TRUE(Tick(absl::Seconds(9)).calls.empty());
  EXPECT_FALSE(score_->done());
  there_ = absl::OkStatus();
  EXPECT_EQ(Tick().calls.size(), 1u) << "the scorer is available again";

  there_ = absl::UnavailableError("no worker at unix:/x");
  Begin("python:judge");
  Tick();
  EXPECT_EQ(score_->NextTick(), now_ + absl::Seconds(10));
  Tick(absl::Seconds(10));
  ASSERT_TRUE(score_->done());
  const absl::Status away = score_->Finish().status();
  EXPECT_EQ(ErrorReason(away), "SCORER_AWAY");
  EXPECT_TRUE(absl::IsUnavailable(away)) << "UNAVAILABLE does not count against the rollouter";
}

TEST_F(GroupScoreTest, ACallThatItsServiceRefusedIsNoFailureAndIsMadeAgain) {
  const absl::Status refused = Error(absl::StatusCode::kPermissionDenied, kScorerRefused, "gave 401");
  Begin("judge");
  for (int32_t attempt = 0; attempt < 2 * rules_.attempts; ++attempt) {
    const RemoteItem item = OnlyCall(rules_.pause);
    // One of the answers was judged before the key was taken away.
    if (attempt == 0) {
      Answer(item, Rewards{Worth(1), refused, refused});
    } else {
      EXPECT_EQ(item.texts.size(), 2u);
      Answer(item, attempt % 2 == 0 ? Rewards{refused, refused} : absl::StatusOr<Rewards>(refused));
    }
    ASSERT_FALSE(score_->done()) << attempt;
    EXPECT_TRUE(Tick().calls.empty()) << "not at once";
  }
  Answer(OnlyCall(rules_.pause), Rewards{absl::InternalError("it broke"), refused});
  EXPECT_FALSE(score_->done()) << "one failure";
  there_ = refused;
  Tick(rules_.pause);
  Tick(rules_.timeout);
  ASSERT_TRUE(score_->done());
  const absl::Status away = score_->Finish().status();
  EXPECT_EQ(ErrorReason(away), "SCORER_AWAY") << "no prompt pays for it";
  EXPECT_TRUE(absl::StrContains(away.message(), "gave 401"));
}

TEST_F(GroupScoreTest, WhatItsServiceRefusedLetsOthersGoFirstWhenThatIsBack) {
  Begin("judge");
  there_ = Error(absl::StatusCode::kPermissionDenied, kScorerRefused, "gave 403");
  EXPECT_TRUE(Tick().calls.empty());
  there_ = absl::OkStatus();
  Answer(OnlyCall(), Error(absl::StatusCode::kPermissionDenied, kScorerRefused, "gave 403"));
  for (int32_t time = 0; time < 2; ++time) {
    there_ = Error(absl::StatusCode::kPermissionDenied, kScorerRefused, "gave 403");
    EXPECT_TRUE(Tick(rules_.pause).calls.empty());
    there_ = absl::OkStatus();
    EXPECT_TRUE(Tick().calls.empty()) << time;
    EXPECT_EQ(score_->NextTick(), now_ + rules_.pause);
  }
  OnlyCall(rules_.pause);
}

TEST_F(GroupScoreTest, WaitsForAsLongAsItTakesWhileThereIsNoRoom) {
  there_ = absl::ResourceExhaustedError("64 answers are being judged");
  Begin("python:judge");
  EXPECT_TRUE(Tick().calls.empty());
  EXPECT_EQ(score_->NextTick(), absl::InfiniteFuture());
  EXPECT_TRUE(Tick(absl::Minutes(9)).calls.empty());
  EXPECT_FALSE(score_->done());
  there_ = absl::OkStatus();
  const RemoteItem item = OnlyCall();
  EXPECT_EQ(score_->NextTick(), now_ + absl::Seconds(10)) << "the time limit begins with the call";
}

TEST_F(GroupScoreTest, TheJudgeDecidesWhatIsUndecidedAndNothingElse) {
  rules_.judge = "math_verify";
  Begin("regex + dense");
  const RemoteItem item = OnlyCall();
  EXPECT_EQ(item.reward, "math_verify");
  EXPECT_EQ(item.texts, (std::vector<std::string>{"2,3", "4,4"}));
  Answer(item, Rewards{Worth(1), Worth(0)});
  const TrajectoryGroup group = score_->Finish().value();
  EXPECT_FLOAT_EQ(group.samples[1].reward, 1.5f);
  EXPECT_FLOAT_EQ(group.samples[2].reward, 0);
}

TEST_F(GroupScoreTest, WithoutAJudgeUndecidedIsWrongOrAFailureByChoice) {
  Begin("regex");
  ASSERT_TRUE(score_->done());
  EXPECT_FLOAT_EQ(score_->Finish()->samples[1].reward, 0);
  rules_.undecided_fails = true;
  Begin("regex");
  EXPECT_EQ(FailsWith(), "REWARD_FAILED");
}

TEST_F(GroupScoreTest, PartsOfARemoteRewardAreKeptIfEverySampleHasThem) {
  Begin("python:judge");
  Answer(OnlyCall(), Rewards{RemoteReward{1, {{"style", 0.5f}, {"odd", 1}}}, RemoteReward{2, {{"style", 0.25f}}},
                             RemoteReward{3, {{"style", 0.125f}}}});
  const TrajectoryGroup group = score_->Finish().value();
  EXPECT_EQ(group.samples[1].reward_parts,
            (std::vector<RewardPart>{{"python:judge", 2}, {"python:judge/style", 0.25f}}));
}

TEST_F(GroupScoreTest, ARowThatIsNoneFailsTheGroup) {
  Begin("math", MakeLease("[]"));
  EXPECT_EQ(FailsWith(), "REWARD_FAILED");
  Begin("math", MakeLease("{}"));
  EXPECT_EQ(FailsWith(), "REWARD_FAILED");
}

TEST(RewardPlanTest, RefusesRewardsOfTextWhereThereIsNone) {
  const RewardRegistry registry = RewardRegistry::BuiltIn();
  EXPECT_TRUE(RewardPlan::Create("dense + exact", registry, nullptr).ok());
  for (const char* formula : {"math", "dense + http", "python:judge"}) {
    EXPECT_EQ(ErrorReason(RewardPlan::Create(formula, registry, nullptr).status()), "NO_TEXT") << formula;
  }
  EXPECT_EQ(ErrorReason(RewardPlan::Create("regex", registry, Decode).status()), "UNKNOWN_REWARD");
}

}  // namespace
}  // namespace syncopate::rollouter
