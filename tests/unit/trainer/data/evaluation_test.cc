#include "trainer/data/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>

#include "base/status.h"
#include "tests/unit/trainer/data/group_factory.h"
#include "trainer/data/tasks.h"

namespace syncopate::trainer {
namespace {

using Result = GroupLedger::Result;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr PolicyVersion kVersion{1, 10};

class EvaluationTest : public ::testing::Test {
 protected:
  EvaluationTest() : prompts_(*MakeTask({.seed = 999})) {
    Evaluation::Options options;
    options.index = 2;
    options.version = kVersion;
    options.prompts = 4;
    options.show_samples = 2;
    options.sampling = {.temperature = 0, .max_new_tokens = 5, .stop_token_ids = {}};
    evaluation_ = std::make_unique<Evaluation>(options, prompts_.get());
    rules_ = {.vocab_size = prompts_->vocab_size(), .epoch = 1, .known_steps = {9, 10, 11}};
  }

  SessionId Join(const std::string& replica, PolicyVersion serving, int64_t room) {
    SessionId id = sessions_.Add({"rollouter", replica, 0, 1, "x"}).session;
    sessions_.Find(id)->serving = serving;
    sessions_.Find(id)->room = room;
    return id;
  }

  std::vector<IssuedLease> Leases() { return evaluation_->NextLeases(&sessions_, now_); }

  static TrajectoryGroup RightAnswer(const Lease& lease, const PolicyVersion& version = kVersion) {
    TrajectoryGroup group = AnswerTo(lease, version);
    Trajectory& sample = group.samples[0];
    sample.tokens = lease.answer_ids;
    sample.logprobs.assign(sample.tokens.size(), -0.1f);
    sample.spans = {{version, 0, static_cast<int32_t>(sample.tokens.size())}};
    sample.reward = 1;
    return group;
  }

  absl::Time now_ = absl::UnixEpoch();
  std::unique_ptr<PromptSource> prompts_;
  std::unique_ptr<Evaluation> evaluation_;
  RolloutSessions sessions_;
  SubmissionRules rules_;
};

TEST_F(EvaluationTest, AsksOnlyRolloutersThatServeTheVersionForOneGreedySampleEach) {
  Join("newer", {1, 11}, 8);
  SessionId right = Join("right", kVersion, 3);
  std::vector<IssuedLease> issued = Leases();
  ASSERT_THAT(issued, SizeIs(3)) << "as many as the rollouter has room for";
  for (const IssuedLease& one : issued) {
    EXPECT_EQ(one.session, right);
    EXPECT_EQ(one.lease.kind, LeaseKind::kEvaluation);
    EXPECT_TRUE(Evaluation::IsEvaluation(one.lease.id));
    EXPECT_EQ(one.lease.samples, 1);
    EXPECT_EQ(one.lease.version, kVersion);
    EXPECT_EQ(one.lease.sampling.temperature, 0);
  }
  EXPECT_EQ(sessions_.Find(right)->room, 0);
}

TEST_F(EvaluationTest, AsksRolloutersByTheVersionThatTheyHavePinnedWhateverElseServes) {
  const SessionId later = Join("serves it and has pinned an older one", kVersion, 8);
  sessions_.Find(later)->pinned = {1, 9};
  EXPECT_THAT(Leases(), IsEmpty()) << "the older one would answer";
  EXPECT_FALSE(evaluation_->IsServed(sessions_));
  const SessionId right = Join("serves a newer one and has pinned it", {1, 11}, 8);
  sessions_.Find(right)->pinned = kVersion;
  const std::vector<IssuedLease> issued = Leases();
  ASSERT_FALSE(issued.empty());
  for (const IssuedLease& one : issued) EXPECT_EQ(one.session, right);
  EXPECT_FALSE(evaluation_->IsOvertaken(sessions_));
}

TEST_F(EvaluationTest, TheFirstToServeTheVersionLeavesTheOthersTheirShare) {
  const SessionId first = Join("first", kVersion, 100);
  const SessionId second = Join("second", {1, 9}, 100);
  Join("third", {1, 9}, 100);
  Join("fourth", {1, 9}, 100);
  std::vector<IssuedLease> issued = Leases();
  ASSERT_THAT(issued, SizeIs(2)) << "half of four prompts";
  for (const IssuedLease& one : issued) EXPECT_EQ(one.session, first);
  sessions_.Find(second)->serving = kVersion;  // the version arrives a moment later
  issued = Leases();
  ASSERT_THAT(issued, SizeIs(2));
  for (const IssuedLease& one : issued) EXPECT_EQ(one.session, second);
}

TEST_F(EvaluationTest, ARollouterThatIsDoneTakesOverTheShareOfOneThatDoesNotCome) {
  const SessionId first = Join("first", kVersion, 100);
  Join("never", {1, 9}, 100);
  int64_t answered = 0;
  for (std::vector<IssuedLease> issued = Leases(); !issued.empty(); issued = Leases()) {
    for (const IssuedLease& one : issued) {
      EXPECT_EQ(evaluation_->Submit(first, RightAnswer(one.lease), rules_).result, Result::kAccepted);
      ++answered;
    }
  }
  EXPECT_EQ(answered, 4);
  EXPECT_TRUE(evaluation_->done());
}

TEST_F(EvaluationTest, RecordedPromptsKeepTheirWholeAnswers) {
  for (const double share : {0.0, 1.0}) {
    Evaluation evaluation({.version = kVersion,
                           .prompts = 2,
                           .sampling = {.temperature = 0, .max_new_tokens = 5},
                           .sets = {{"set", prompts_.get(), 1, 2, "dense", {.temperature = 0, .max_new_tokens = 5}}},
                           .recorded = {.share = share}},
                          prompts_.get());
    const SessionId right = Join("right", kVersion, 4);
    for (const IssuedLease& one : evaluation.NextLeases(&sessions_, now_)) {
      TrajectoryGroup group = RightAnswer(one.lease);
      group.rollouter = "right";
      ASSERT_EQ(evaluation.Submit(right, group, rules_).result, Result::kAccepted);
    }
    ASSERT_TRUE(evaluation.done());
    const EvaluationResult result = evaluation.Result();
    ASSERT_THAT(result.recorded, SizeIs(share > 0 ? 4 : 0));
    EXPECT_EQ(result.sets[0].response_tokens_mean, static_cast<double>(prompts_->At({-1, 0}).answer_ids.size()));
    for (const EvaluatedAnswer& one : result.recorded) {
      EXPECT_EQ(one.answer.tokens, one.prompt->answer_ids);
      EXPECT_EQ(one.answer.logprobs.size(), one.answer.tokens.size());
      EXPECT_EQ(one.rollouter, "right");
    }
    if (share > 0) {
      EXPECT_EQ(result.recorded[3].set, "set");
      EXPECT_EQ(result.recorded[3].sample, 1);
    }
  }
}

TEST_F(EvaluationTest, SpreadsThePromptsEvenlyWhateverRoomTheRolloutersHave) {
  std::map<SessionId, int64_t> given;
  given[Join("wide", kVersion, 1000)] = 0;
  given[Join("narrow", kVersion, 2)] = 0;
  Join("behind", {1, 9}, 8);
  Join("ahead", {1, 11}, 8);
  for (const IssuedLease& one : Leases()) ++given[one.session];
  for (const auto& [session, count] : given) EXPECT_EQ(count, 2) << session;
}

TEST_F(EvaluationTest, AtMostHalfOfTheRolloutersHoldItsLeasesAtATime) {
  for (int i = 0; i < 5; ++i) Join(absl::StrCat("rollouter-", i), kVersion, 1);
  std::set<SessionId> holders;
  for (const IssuedLease& one : Leases()) holders.insert(one.session);
  EXPECT_THAT(holders, SizeIs(2));
  EXPECT_THAT(Leases(), IsEmpty()) << "the others have room and serve the version";
  const SessionId lost = *holders.begin();
  evaluation_->OnSessionLost(lost);
  sessions_.Remove(lost);
  const std::vector<IssuedLease> again = Leases();
  ASSERT_THAT(again, SizeIs(1)) << "another rollouter replaces it";
  EXPECT_NE(again[0].session, lost);
}

// Prompts whose right answers only the reward knows.
class UnknownAnswers final : public PromptSource {
 public:
  Prompt At(const GroupId&) const override {
    return {.prompt_ids = {1, 2},
            .answer_ids = {},
            .task = {.environment = "math", .row_json = R"({"ground_truth": "4"})"}};
  }
  std::string Render(const std::vector<int32_t>&) const override { return ""; }
  int64_t prompts_per_pass() const override { return 0; }
  int32_t vocab_size() const override { return 16; }
  std::vector<int32_t> stop_token_ids() const override { return {0}; }
  int64_t max_prompt_tokens() const override { return 2; }
  int64_t max_answer_tokens() const override { return 0; }
};

TEST_F(EvaluationTest, WithoutAnswerIdsTheFigureIsTheMeanRewardAlone) {
  const UnknownAnswers prompts;
  Evaluation::Options options = evaluation_->options();
  Evaluation evaluation(options, &prompts);
  rules_.vocab_size = prompts.vocab_size();
  const SessionId session = Join("a", kVersion, 8);
  const std::vector<IssuedLease> issued = evaluation.NextLeases(&sessions_, now_);
  ASSERT_THAT(issued, SizeIs(4));
  for (const IssuedLease& one : issued) {
    TrajectoryGroup group = AnswerTo(one.lease, kVersion);
    group.samples[0].reward = 0.5f;
    EXPECT_EQ(evaluation.Submit(session, group, rules_).result, Result::kAccepted);
  }
  const EvaluationResult result = evaluation.Result();
  EXPECT_FALSE(result.exact.has_value());
  EXPECT_DOUBLE_EQ(result.reward_mean, 0.5);
  ASSERT_THAT(result.samples, SizeIs(2));
  EXPECT_EQ(result.samples[0].row_json, R"({"ground_truth": "4"})");
  EXPECT_FLOAT_EQ(result.samples[0].reward, 0.5f);
}

TEST_F(EvaluationTest, CountsExactAnswersAndShowsTheFirst) {
  SessionId session = Join("a", kVersion, 8);
  std::vector<IssuedLease> issued = Leases();
  ASSERT_THAT(issued, SizeIs(4));
  for (size_t i = 0; i < 4; ++i) {
    TrajectoryGroup group = RightAnswer(issued[i].lease);
    if (i == 3) group.samples[0].tokens[0] ^= 1, group.samples[0].reward = 0.5f;
    EXPECT_EQ(evaluation_->Submit(session, group, rules_).result, Result::kAccepted);
  }
  ASSERT_TRUE(evaluation_->done());
  EvaluationResult result = evaluation_->Result();
  EXPECT_EQ(result.prompts, 4);
  ASSERT_TRUE(result.exact.has_value());
  EXPECT_DOUBLE_EQ(*result.exact, 0.75);
  EXPECT_DOUBLE_EQ(result.reward_mean, 0.875);
  ASSERT_THAT(result.samples, SizeIs(2));
  EXPECT_EQ(result.samples[0].answer_ids, result.samples[0].expected_ids);
}

TEST_F(EvaluationTest, KeepsThePartsOfTheRewardAndHowLongTheAnswersWere) {
  const SessionId session = Join("a", kVersion, 8);
  const std::vector<IssuedLease> issued = Leases();
  ASSERT_THAT(issued, SizeIs(4));
  for (size_t i = 0; i < 4; ++i) {
    TrajectoryGroup group = RightAnswer(issued[i].lease);
    Trajectory& answer = group.samples[0];
    if (i == 3) {
      answer.tokens.resize(1);
      answer.logprobs.resize(1);
      answer.spans[0].end = 1;
    }
    if (i == 0) {  // a tool has said the second token
      answer.given = {{1, 2}};
      answer.logprobs[1] = 0;
      answer.spans = {{kVersion, 0, 1}, {kVersion, 2, answer.spans[0].end}};
      answer.turns = {{1, 0, 0}, {answer.spans[1].end, 0, 0}};
    }
    answer.finish = i == 3 ? FinishReason::kStop : FinishReason::kLength;
    answer.reward_parts = {{"format", i == 0 ? 1.0f : 0.0f}};
    ASSERT_EQ(evaluation_->Submit(session, group, rules_).result, Result::kAccepted);
  }
  const int64_t longest = static_cast<int64_t>(issued[0].lease.answer_ids.size());
  const EvaluationFigures figures = evaluation_->Result().figures;
  EXPECT_THAT(figures.reward_parts, ElementsAre(Pair("format", 0.25)));
  EXPECT_EQ(figures.response_tokens_min, 1);
  EXPECT_EQ(figures.response_tokens_max, longest);
  EXPECT_DOUBLE_EQ(figures.response_tokens_mean, static_cast<double>(3 * longest) / 4) << "without what was given";
  EXPECT_EQ(figures.turns_mean, 0.5);
  EXPECT_EQ(figures.truncated, 3);
  EXPECT_THAT(figures.files, IsEmpty()) << "a built-in task has none";
}

Trajectory Rewarded(float reward) {
  Trajectory answer;
  answer.reward = reward;
  return answer;
}

TEST(EvaluationTallyTest, HasAFigureByFileAndByDataSourceWhereThereAreSeveral) {
  using Subset = EvaluationFigures::Subset;
  EvaluationTally tally;
  auto add = [&tally](const std::string& file, const std::string& source, float reward) {
    Prompt prompt;
    prompt.origin = {file, source};
    tally.Add(prompt, Rewarded(reward));
  };
  add("/data/gsm8k.jsonl", "gsm8k", 1);
  EXPECT_THAT(tally.Figures().files, IsEmpty()) << "the figure would repeat the mean";
  EXPECT_THAT(tally.Figures().data_sources, IsEmpty());
  add("/data/gsm8k.jsonl", "", 0);
  add("/data/a/test.jsonl", "gsm8k", 0.5f);
  add("/data/b/test.jsonl", "", 1);
  EXPECT_THAT(tally.Figures().files, ElementsAre(Subset{"/data/a/test.jsonl", 1, 0.5},
                                                 Subset{"/data/b/test.jsonl", 1, 1}, Subset{"gsm8k.jsonl", 2, 0.5}));
  EXPECT_THAT(tally.Figures().data_sources, ElementsAre(Subset{"(none)", 2, 0.5}, Subset{"gsm8k", 2, 0.75}));
}

TEST(EvaluationTallyTest, HasRewardTurnsAndLengthByEnvironment) {
  using Subset = EvaluationFigures::Subset;
  EvaluationTally tally;
  auto add = [&tally](const std::string& environment, float reward, size_t turns, size_t tokens) {
    Prompt prompt;
    prompt.origin = {"rows.jsonl", "", environment};
    Trajectory answer = Rewarded(reward);
    answer.turns.resize(turns);
    answer.tokens.resize(tokens);
    tally.Add(prompt, answer);
  };
  add("desk", 1, 3, 30);
  EXPECT_THAT(tally.Figures().environments, IsEmpty()) << "the figures would repeat those of all";
  EXPECT_EQ(tally.Figures().turns_mean, 3);
  add("desk", 0, 1, 10);
  add("shop", 0.5f, 5, 40);
  EXPECT_THAT(tally.Figures().environments, ElementsAre(Subset{"desk", 2, 0.5, 20, 2}, Subset{"shop", 1, 0.5, 40, 5}));
  EXPECT_EQ(tally.Figures().turns_mean, 3);
}

TEST(EvaluationTallyTest, HoldsNoMoreNamesThanPeopleCanRead) {
  EvaluationTally tally;
  for (int i = 0; i < 100; ++i) {
    Prompt prompt;
    prompt.origin = {"rows.jsonl", absl::StrCat("source ", i)};
    Trajectory answer = Rewarded(1);
    answer.reward_parts = {{absl::StrCat("part ", i), 1}};
    tally.Add(prompt, answer);
  }
  EXPECT_THAT(tally.Figures().data_sources, SizeIs(EvaluationTally::kMaxSubsets));
  EXPECT_THAT(tally.Figures().reward_parts, SizeIs(EvaluationTally::kMaxParts));
}

TEST_F(EvaluationTest, AsksAgainWhenAnotherVersionAnswered) {
  SessionId session = Join("a", kVersion, 1);
  Lease lease = Leases().at(0).lease;
  GroupLedger::Verdict verdict = evaluation_->Submit(session, RightAnswer(lease, {1, 11}), rules_);
  EXPECT_EQ(verdict.result, Result::kInvalid);
  EXPECT_EQ(ErrorReason(verdict.error), "WRONG_VERSION");
  sessions_.Find(session)->room = 1;
  Lease again = Leases().at(0).lease;
  EXPECT_EQ(again.id.group, lease.id.group);
  EXPECT_EQ(again.id.attempt, 2);
  EXPECT_EQ(again.seed, lease.seed);
}

TEST_F(EvaluationTest, TakesAnswersOfItsVersionThoughTrainingHasLeftItBehind) {
  SessionId session = Join("a", kVersion, 2);
  std::vector<IssuedLease> issued = Leases();
  rules_.known_steps = {12};
  EXPECT_EQ(evaluation_->Submit(session, RightAnswer(issued[0].lease), rules_).result, Result::kAccepted);
  GroupLedger::Verdict late = evaluation_->Submit(session, RightAnswer(issued[1].lease, {1, 11}), rules_);
  EXPECT_EQ(ErrorReason(late.error), "WRONG_VERSION")
      << "an install during the answer does not count against the rollouter";
}

TEST_F(EvaluationTest, RefusesTokensOfAVersionBeforeTheOneItAskedFor) {
  SessionId session = Join("a", kVersion, 1);
  GroupLedger::Verdict verdict = evaluation_->Submit(session, RightAnswer(Leases().at(0).lease, {1, 9}), rules_);
  EXPECT_EQ(verdict.result, Result::kInvalid);
  EXPECT_EQ(ErrorReason(verdict.error), "UNKNOWN_VERSION");
}

TEST_F(EvaluationTest, AsksAgainWhenTheAnswerIsLostReturnedOrLate) {
  SessionId a = Join("a", kVersion, 3);
  std::vector<IssuedLease> issued = Leases();
  EXPECT_EQ(evaluation_->Return(a, issued[0].lease.id, absl::UnavailableError("drains")), now_);
  EXPECT_EQ(evaluation_->Return(a, issued[0].lease.id, absl::UnavailableError("drains")), std::nullopt);
  now_ += absl::Minutes(2);
  EXPECT_THAT(evaluation_->ExpireLeases(&sessions_, now_), SizeIs(2));
  EXPECT_EQ(evaluation_->Submit(a, RightAnswer(issued[1].lease), rules_).result, Result::kExpired);
  SessionId b = Join("b", kVersion, 4);
  EXPECT_THAT(Leases(), SizeIs(4)) << "a has stalled, so all is its share";
  evaluation_->OnSessionLost(b);
  sessions_.Remove(b);
  sessions_.Find(a)->room = 4;
  EXPECT_THAT(Leases(), IsEmpty());
  for (const IssuedLease& one : issued) sessions_.OnHeard(a, one.lease.id);
  EXPECT_THAT(Leases(), SizeIs(4));
}

TEST_F(EvaluationTest, EndsWithoutThePromptWhoseRewardFailsTimeAfterTime) {
  const SessionId a = Join("a", kVersion, 4);
  const absl::Status failed = Error(absl::StatusCode::kInternal, "REWARD_FAILED", "no such key");
  for (int round = 0; round < Evaluation::kMaxRewardFailures; ++round) {
    ASSERT_FALSE(evaluation_->done());
    for (const IssuedLease& one : Leases()) {
      if (one.lease.id.group.ordinal == 0) {
        EXPECT_EQ(evaluation_->Return(a, one.lease.id, failed), now_);
        ++sessions_.Find(a)->room;
      } else {
        EXPECT_EQ(evaluation_->Submit(a, RightAnswer(one.lease), rules_).result, Result::kAccepted);
      }
    }
  }
  EXPECT_TRUE(evaluation_->done());
  EXPECT_THAT(Leases(), IsEmpty());
  EXPECT_EQ(evaluation_->Result().prompts, 3);
  EXPECT_EQ(evaluation_->Result().reward_mean, 1);
}

TEST_F(EvaluationTest, APromptWhoseRewardFailsDoesNotLoseTheOthersWhenEverybodyHasGoneOn) {
  const SessionId a = Join("a", kVersion, 4);
  const absl::Status failed = Error(absl::StatusCode::kInternal, "REWARD_FAILED", "no such key");
  for (const IssuedLease& one : Leases()) {
    if (one.lease.id.group.ordinal == 0) {
      evaluation_->Return(a, one.lease.id, failed);
    } else {
      evaluation_->Submit(a, RightAnswer(one.lease), rules_);
    }
  }
  sessions_.Find(a)->serving.step = kVersion.step + 1;
  ASSERT_TRUE(evaluation_->IsOvertaken(sessions_));
  evaluation_->LeaveOutFailed();
  EXPECT_TRUE(evaluation_->done());
  EXPECT_EQ(evaluation_->Result().prompts, 3);
  EXPECT_EQ(evaluation_->Result().asked, 4);
}

TEST_F(EvaluationTest, WhatWasNeverAnsweredIsNotLeftOut) {
  const SessionId a = Join("a", kVersion, 1);
  for (const IssuedLease& one : Leases()) evaluation_->Submit(a, RightAnswer(one.lease), rules_);
  evaluation_->LeaveOutFailed();
  EXPECT_FALSE(evaluation_->done());
}

TEST_F(EvaluationTest, RevokesALeaseWithoutProgressAndLeasesToAnotherRollouter) {
  SessionId a = Join("a", kVersion, 2), b = Join("b", kVersion, 2);
  for (const char* behind : {"c", "d"}) Join(behind, {1, 9}, 2);
  std::vector<IssuedLease> issued = Leases();
  ASSERT_THAT(issued, SizeIs(4));
  sessions_.Find(b)->room = 4;
  now_ += absl::Seconds(20);
  for (const IssuedLease& one : issued) {
    if (one.session == b) evaluation_->OnProgress(&sessions_, b, one.lease.id, now_);
    if (one.session == a) evaluation_->OnProgress(&sessions_, b, one.lease.id, now_);  // `b` does not hold this lease
  }
  now_ += absl::Seconds(10);
  std::vector<Revocation> revoked = evaluation_->ExpireLeases(&sessions_, now_);
  ASSERT_THAT(revoked, SizeIs(2));
  for (const Revocation& one : revoked) {
    EXPECT_EQ(one.session, a);
    EXPECT_EQ(one.reason, RevokeReason::kStalled);
  }
  EXPECT_TRUE(sessions_.Find(a)->IsStalled());
  sessions_.Find(a)->room = 4;
  std::vector<IssuedLease> again = Leases();
  ASSERT_THAT(again, SizeIs(2));
  for (const IssuedLease& one : again) {
    EXPECT_EQ(one.session, b);
    EXPECT_EQ(one.lease.id.attempt, 2);
  }
}

TEST_F(EvaluationTest, KnowsDuplicatesAndStrangers) {
  SessionId session = Join("a", kVersion, 1);
  Lease lease = Leases().at(0).lease;
  EXPECT_EQ(evaluation_->Submit(session + 1, RightAnswer(lease), rules_).result, Result::kExpired);
  EXPECT_EQ(evaluation_->Submit(session, RightAnswer(lease), rules_).result, Result::kAccepted);
  EXPECT_EQ(evaluation_->Submit(session, RightAnswer(lease), rules_).result, Result::kAlreadyAccepted);
  lease.id.group.pass = -1;
  EXPECT_EQ(evaluation_->Submit(session, RightAnswer(lease), rules_).result, Result::kExpired);
  lease.id.group = {-3, 1000};
  EXPECT_EQ(evaluation_->Submit(session, RightAnswer(lease), rules_).result, Result::kExpired);
}

TEST_F(EvaluationTest, IsOvertakenWhenEveryRollouterHasGoneOn) {
  EXPECT_FALSE(evaluation_->IsOvertaken(sessions_)) << "an answer may still come";
  Join("a", {1, 11}, 1);
  SessionId b = Join("b", {1, 9}, 1);
  EXPECT_FALSE(evaluation_->IsOvertaken(sessions_));
  sessions_.Find(b)->serving = {1, 12};
  EXPECT_TRUE(evaluation_->IsOvertaken(sessions_));
  EXPECT_THAT(Leases(), IsEmpty());
}

// An evaluation of two prompts of its own, and a set of three prompts with four answers each.
class EvaluationSetsTest : public EvaluationTest {
 protected:
  static constexpr int32_t kSamples = 4;

  EvaluationSetsTest() {
    Evaluation::Options options = evaluation_->options();
    options.prompts = 2;
    options.sets = {{.name = "set",
                     .source = others_.get(),
                     .prompts = 3,
                     .samples = kSamples,
                     .reward = "exact",
                     .sampling = {.temperature = 0.6f, .max_new_tokens = 7, .stop_token_ids = {}}}};
    evaluation_ = std::make_unique<Evaluation>(options, prompts_.get());
    session_ = Join("all", kVersion, 100);
  }

  void Answer(const Lease& lease, float reward, FinishReason finish = FinishReason::kStop) {
    TrajectoryGroup group = RightAnswer(lease);
    group.samples[0].reward = reward;
    group.samples[0].finish = finish;
    ASSERT_EQ(evaluation_->Submit(session_, group, rules_).result, Result::kAccepted);
  }

  std::unique_ptr<PromptSource> others_ = *MakeTask({.seed = 5});
  SessionId session_ = 0;
};

TEST_F(EvaluationSetsTest, AsksEachPromptAsOftenAsTheSetSaysWithItsRewardAndSampling) {
  const std::vector<IssuedLease> issued = Leases();
  ASSERT_THAT(issued, SizeIs(2 + 3 * kSamples));
  std::set<uint64_t> seeds;
  for (size_t i = 0; i < issued.size(); ++i) {
    const Lease& lease = issued[i].lease;
    EXPECT_EQ(lease.samples, 1);
    EXPECT_EQ(lease.version, kVersion);
    const bool of_set = i >= 2;
    EXPECT_EQ(lease.reward, of_set ? "exact" : "dense");
    EXPECT_EQ(lease.sampling.max_new_tokens, of_set ? 7 : 5);
    EXPECT_EQ(lease.sampling.temperature > 0, of_set);
    if (!of_set) continue;
    seeds.insert(lease.seed);
    const auto prompt = static_cast<int64_t>((i - 2) / kSamples);
    EXPECT_EQ(lease.prompt_ids, others_->At({PromptSource::kEvaluationPass, prompt}).prompt_ids);
  }
  EXPECT_THAT(seeds, SizeIs(3 * kSamples)) << "each answer is drawn independently";
}

TEST_F(EvaluationSetsTest, SaysWhatPapersReport) {
  const std::vector<IssuedLease> issued = Leases();
  ASSERT_THAT(issued, SizeIs(2 + 3 * kSamples));
  Answer(issued[0].lease, 1);
  Answer(issued[1].lease, 0.5f);
  // Right answers: one of four, all of four, and for the third prompt one of the two answers that come.
  const std::vector<std::vector<float>> rewards = {{0.5f, 1, 0, 0}, {1, 1, 1, 1}, {0.5f, 1}};
  for (size_t prompt = 0; prompt < rewards.size(); ++prompt) {
    for (size_t sample = 0; sample < rewards[prompt].size(); ++sample) {
      Answer(issued[2 + prompt * kSamples + sample].lease, rewards[prompt][sample],
             sample == 0 ? FinishReason::kLength : FinishReason::kStop);
    }
  }
  EXPECT_FALSE(evaluation_->done());
  const EvaluationResult result = evaluation_->Result();
  EXPECT_EQ(result.prompts, 2) << "those of the set are counted apart";
  EXPECT_DOUBLE_EQ(result.reward_mean, 0.75);
  ASSERT_THAT(result.sets, SizeIs(1));
  const SampledFigures& set = result.sets[0];
  EXPECT_EQ(set.name, "set");
  EXPECT_EQ(set.asked, 12);
  EXPECT_EQ(set.missing, 2);
  EXPECT_EQ(set.prompts, 3);
  ASSERT_TRUE(set.reward.has_value());
  EXPECT_NEAR(set.reward->mean, (1.5 / 4 + 1 + 0.75) / 3, 1e-12);
  EXPECT_NEAR(set.pass.at(1).mean, (0.25 + 1 + 0.5) / 3, 1e-12);
  EXPECT_NEAR(set.pass.at(2).mean, (0.5 + 1 + 1) / 3, 1e-12);
  EXPECT_NEAR(set.pass.at(4).mean, (1.0 + 1.0) / 2, 1e-12) << "two answers give no figure of four";
  EXPECT_NEAR(set.truncated_ratio, 0.3, 1e-12);
  EXPECT_GT(set.response_tokens_mean, 0);
}

TEST_F(EvaluationSetsTest, ALostSessionsAnswersAreAskedForAgain) {
  const size_t all = Leases().size();
  EXPECT_THAT(Leases(), IsEmpty());
  evaluation_->OnSessionLost(session_);
  sessions_.Remove(session_);
  session_ = Join("next", kVersion, 100);
  EXPECT_THAT(Leases(), SizeIs(all));
}

}  // namespace
}  // namespace syncopate::trainer
