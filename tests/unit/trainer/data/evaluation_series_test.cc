#include "trainer/data/evaluation_series.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/support/status_matchers.h"
#include "tests/unit/trainer/data/group_factory.h"
#include "trainer/data/tasks.h"

namespace syncopate::trainer {
namespace {

using ::syncopate::testing::HasReason;
using ::testing::SizeIs;

constexpr PolicyVersion kEvaluated{1, 10};
constexpr PolicyVersion kNext{1, 11};

class EvaluationSeriesTest : public ::testing::Test {
 protected:
  EvaluationSeriesTest()
      : prompts_(*MakeTask({.seed = 999})),
        series_({.options = {.prompts = 2, .samples_shown = 1, .sampling = Greedy()}, .prompts = prompts_.get()}),
        rules_{.vocab_size = prompts_->vocab_size(), .epoch = 1, .known_steps = {10, 11}} {
    session_ = sessions_.Add({"rollouter", "r0", 0, 1, "x"}).session;
    sessions_.Find(session_)->room = 4;
    Serve(kEvaluated);
  }

  static SamplingParams Greedy() { return {.temperature = 0, .max_new_tokens = 5, .stop_token_ids = {}}; }
  void Serve(const PolicyVersion& version) { sessions_.Find(session_)->serving = version; }
  void AnswerAll(const std::vector<IssuedLease>& issued) {
    for (const IssuedLease& one : issued) {
      ASSERT_EQ(series_.current()->Submit(session_, AnswerTo(one.lease, kEvaluated), rules_).result,
                GroupLedger::Result::kAccepted);
    }
  }
  std::vector<IssuedLease> Leases() { return series_.current()->NextLeases(&sessions_, absl::UnixEpoch()); }

  std::unique_ptr<PromptSource> prompts_;
  EvaluationSeries series_;
  SubmissionRules rules_;
  RolloutSessions sessions_;
  SessionId session_ = 0;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(EvaluationSeriesTest, HasNoResultBeforeOneIsStarted) {
  EXPECT_TRUE(series_.HasEnded(sessions_, now_)) << "a waiter must not wait for a result that will never come";
  EXPECT_FALSE(series_.IsServed(sessions_));
  EXPECT_THAT(series_.TakeResult(sessions_, now_), HasReason("NO_EVALUATION"));
}

TEST_F(EvaluationSeriesTest, GoesOnUntilAllPromptsAreAnswered) {
  series_.Start(kEvaluated, absl::UnixEpoch());
  EXPECT_TRUE(series_.IsServed(sessions_));
  const std::vector<IssuedLease> issued = Leases();
  ASSERT_THAT(issued, SizeIs(2));
  EXPECT_FALSE(series_.HasEnded(sessions_, now_));
  EXPECT_THAT(series_.TakeResult(sessions_, now_), HasReason("EVALUATING"));
  AnswerAll(issued);
  EXPECT_TRUE(series_.HasEnded(sessions_, now_));
  const auto result = series_.TakeResult(sessions_, now_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->prompts, 2);
  EXPECT_EQ(result->version, kEvaluated);
  EXPECT_THAT(series_.TakeResult(sessions_, now_), HasReason("NO_EVALUATION")) << "a result is given once";
}

TEST_F(EvaluationSeriesTest, IsOverWhenEveryRollouterServesANewerVersion) {
  series_.Start(kEvaluated, absl::UnixEpoch());
  Serve(kNext);
  EXPECT_TRUE(series_.HasEnded(sessions_, now_));
  EXPECT_FALSE(series_.IsServed(sessions_));
  EXPECT_THAT(series_.TakeResult(sessions_, now_), HasReason("OVERTAKEN"));
  EXPECT_EQ(series_.current(), nullptr);
}

TEST_F(EvaluationSeriesTest, EndsAtItsDeadlineWithWhatHasBeenAnswered) {
  EvaluationOptions options{.prompts = 2, .samples_shown = 1, .sampling = Greedy()};
  options.deadline = absl::Seconds(10);
  EvaluationSeries series({.options = options, .prompts = prompts_.get()});
  series.Start(kEvaluated, now_);
  const std::vector<IssuedLease> issued = series.current()->NextLeases(&sessions_, now_);
  ASSERT_THAT(issued, SizeIs(2));
  ASSERT_EQ(series.current()->Submit(session_, AnswerTo(issued[0].lease, kEvaluated), rules_).result,
            GroupLedger::Result::kAccepted);
  now_ += absl::Seconds(9);
  EXPECT_FALSE(series.HasEnded(sessions_, now_));
  now_ += absl::Seconds(1);
  EXPECT_TRUE(series.HasEnded(sessions_, now_));
  const auto result = series.TakeResult(sessions_, now_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->prompts, 1);
  EXPECT_EQ(result->asked, 2);
  EXPECT_EQ(series.current(), nullptr);

  series.Start(kEvaluated, now_);
  now_ += absl::Seconds(10);
  EXPECT_THAT(series.TakeResult(sessions_, now_), HasReason("UNANSWERED"));
}

TEST_F(EvaluationSeriesTest, TellsTheLeasesOfTwoEvaluationsApart) {
  series_.Start(kEvaluated, absl::UnixEpoch());
  const LeaseId first = Leases().front().lease.id;
  series_.Start(kEvaluated, absl::UnixEpoch() + absl::Seconds(9));
  sessions_.Find(session_)->room = 4;
  const LeaseId second = Leases().front().lease.id;
  EXPECT_NE(first.group.pass, second.group.pass) << "an answer to the first must not count for the second";
  EXPECT_EQ(series_.since(), absl::UnixEpoch() + absl::Seconds(9));
}

TEST(EvaluationOptionsTest, RefusesWhatCannotBeEvaluated) {
  const EvaluationOptions good{.prompts = 1, .samples_shown = 0, .sampling = {.temperature = 0, .max_new_tokens = 1}};
  EXPECT_TRUE(good.Validate().ok());
  EvaluationOptions bad = good;
  bad.prompts = 0;
  EXPECT_THAT(bad.Validate(), HasReason("BAD_OPTIONS"));
  bad = good;
  bad.samples_shown = -1;
  EXPECT_THAT(bad.Validate(), HasReason("BAD_OPTIONS"));
  bad = good;
  bad.sampling.temperature = 0.5;
  EXPECT_THAT(bad.Validate(), HasReason("BAD_OPTIONS"));
  bad = good;
  bad.sampling.max_new_tokens = 0;
  EXPECT_THAT(bad.Validate(), HasReason("BAD_OPTIONS"));
}

}  // namespace
}  // namespace syncopate::trainer
