#include "trainer/data/rollout_sessions.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::trainer {
namespace {

class QuarantineTest : public ::testing::Test {
 protected:
  static constexpr int64_t kInARow = RolloutSessions::kInvalidInRow;

  SessionId Join(const std::string& replica) { return sessions_.Add({"rollouter", replica, 0, 1, "x"}).session; }
  bool Invalid(SessionId session) {
    return sessions_.OnAnswer(session, Error(absl::StatusCode::kInvalidArgument, "BAD_LOGPROB", "nan"), now_);
  }
  bool IsQuarantined(SessionId session) { return sessions_.Find(session)->IsQuarantined(now_); }

  RolloutSessions sessions_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(QuarantineTest, BeginsWithTheTenthInvalidAnswerInARowAndEnds) {
  const SessionId bad = Join("bad"), good = Join("good");
  for (int64_t i = 1; i < kInARow; ++i) EXPECT_FALSE(Invalid(bad)) << i;
  EXPECT_FALSE(IsQuarantined(bad));
  EXPECT_TRUE(Invalid(bad)) << "reported once";
  EXPECT_FALSE(Invalid(bad)) << "the rollouter was quarantined already";
  EXPECT_TRUE(IsQuarantined(bad));
  EXPECT_FALSE(IsQuarantined(good));
  now_ += RolloutSessions::kQuarantine;
  EXPECT_FALSE(IsQuarantined(bad));
}

TEST_F(QuarantineTest, AValidAnswerNowAndThenKeepsARollouterAtWork) {
  const SessionId session = Join("flaky");
  for (int64_t i = 0; i < 10 * kInARow; ++i) {
    EXPECT_FALSE(Invalid(session));
    if (i % (kInARow - 1) == 0) sessions_.OnAnswer(session, absl::OkStatus(), now_);
  }
  EXPECT_FALSE(IsQuarantined(session));
}

TEST_F(QuarantineTest, AfterwardsOneInvalidAnswerBringsItBackAndAValidOneWipesTheSlateClean) {
  const SessionId session = Join("bad");
  for (int64_t i = 0; i < kInARow; ++i) Invalid(session);
  now_ += RolloutSessions::kQuarantine;
  EXPECT_TRUE(Invalid(session));
  now_ += RolloutSessions::kQuarantine;
  sessions_.OnAnswer(session, absl::OkStatus(), now_);
  EXPECT_FALSE(Invalid(session));
  EXPECT_FALSE(IsQuarantined(session));
}

TEST_F(QuarantineTest, ARollouterThatHandsBackEveryLeaseIsQuarantinedForAnyReason) {
  const absl::Status reasons[] = {absl::InternalError("no"), absl::CancelledError("drained"),
                                  absl::UnavailableError("not now"), absl::AbortedError("ended early")};
  for (const absl::Status& why : reasons) {
    const SessionId session = Join(why.ToString());
    for (int64_t i = 1; i <= kInARow; ++i) {
      EXPECT_FALSE(IsQuarantined(session));
      const absl::Time issued = now_;
      now_ += absl::Milliseconds(1);
      EXPECT_EQ(sessions_.OnReturn(session, why, issued, now_), i == kInARow) << why;
    }
    EXPECT_TRUE(IsQuarantined(session)) << why;
    EXPECT_EQ(sessions_.Find(session)->returned, kInARow);
    EXPECT_EQ(sessions_.Find(session)->invalid, 0);
    EXPECT_EQ(sessions_.Find(session)->conduct.last_fault, why);
  }
}

TEST_F(QuarantineTest, ADrainThatHandsBackManyLeasesCountsOnceAndAFaultEachTime) {
  const SessionId session = Join("drains");
  const absl::Time issued = now_;
  now_ += absl::Seconds(1);
  for (int i = 0; i < 100; ++i) sessions_.OnReturn(session, absl::UnavailableError("draining"), issued, now_);
  EXPECT_EQ(sessions_.Find(session)->conduct.invalid_in_row, 1);
  for (int i = 0; i < 3; ++i) sessions_.OnReturn(session, absl::InternalError("the reward failed"), issued, now_);
  EXPECT_EQ(sessions_.Find(session)->conduct.invalid_in_row, 4);
  sessions_.OnAnswer(session, absl::OkStatus(), now_);
  EXPECT_EQ(sessions_.Find(session)->conduct.invalid_in_row, 0);
}

TEST_F(QuarantineTest, ARewardThatFailsIsNotTheRolloutersFault) {
  const SessionId session = Join("scores");
  const absl::Status failed = Error(absl::StatusCode::kInternal, "REWARD_FAILED", "the reward of group 0/1 failed");
  for (int64_t i = 0; i < 2 * kInARow; ++i) EXPECT_FALSE(sessions_.OnReturn(session, failed, now_, now_));
  EXPECT_FALSE(IsQuarantined(session));
  EXPECT_EQ(sessions_.Find(session)->returned, 2 * kInARow);
  // The failure of an environment does not count either; both belong to the prompt.
  const absl::Status unplayable = Error(absl::StatusCode::kAborted, "ENVIRONMENT_FAILED", "group 0/2 cannot be played");
  for (int64_t i = 0; i < 2 * kInARow; ++i) EXPECT_FALSE(sessions_.OnReturn(session, unplayable, now_, now_));
  EXPECT_FALSE(IsQuarantined(session));
  EXPECT_TRUE(IsPromptsFault(unplayable) && IsPromptsFault(failed));
}

TEST_F(QuarantineTest, AnotherStreamOfTheSameReplicaDoesNotEndIt) {
  const SessionId first = Join("bad");
  for (int64_t i = 0; i < kInARow; ++i) Invalid(first);
  const SessionId beside = Join("bad");  // the old stream is not known to be gone yet
  EXPECT_TRUE(IsQuarantined(beside));
  sessions_.Remove(first);
  sessions_.Remove(beside);
  EXPECT_TRUE(IsQuarantined(Join("bad")));
}

TEST_F(QuarantineTest, ADisconnectedReplicaWithGoodConductIsForgotten) {
  const SessionId session = Join("once-bad");
  for (int64_t i = 0; i < kInARow; ++i) Invalid(session);
  sessions_.Remove(session);
  const SessionId again = Join("once-bad");
  sessions_.OnAnswer(again, absl::OkStatus(), now_);
  now_ += RolloutSessions::kQuarantine;
  sessions_.Remove(again);
  EXPECT_FALSE(Invalid(Join("once-bad")));
}

}  // namespace
}  // namespace syncopate::trainer
