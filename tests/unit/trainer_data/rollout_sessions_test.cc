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
  EXPECT_TRUE(Invalid(bad)) << "said once";
  EXPECT_FALSE(Invalid(bad)) << "it was quarantined already";
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

TEST_F(QuarantineTest, AnotherStreamOfTheSameReplicaDoesNotEndIt) {
  const SessionId first = Join("bad");
  for (int64_t i = 0; i < kInARow; ++i) Invalid(first);
  const SessionId beside = Join("bad");  // before the old stream is known to be gone
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
