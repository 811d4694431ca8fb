#include "rollouter/reward/scorer.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/fake_remote_scorer.h"

namespace syncopate::rollouter {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(20);

std::string CountTokens(const std::vector<int32_t>& tokens) { return absl::StrCat(tokens.size(), " tokens"); }

Lease LeaseFor(const std::string& reward) {
  Lease lease;
  lease.id = {{1, 7}, 2};
  lease.samples = 1;
  lease.answer_ids = {2, 1};
  lease.reward = reward;
  return lease;
}

TrajectoryGroup OneAnswer() {
  TrajectoryGroup group;
  group.samples.resize(1);
  group.samples[0].tokens = {2, 1};
  return group;
}

class ScorerTest : public ::testing::Test {
 protected:
  void Start(Scorer::Options options) {
    options.python = &remote_;
    options.decode = CountTokens;
    scorer_ = Scorer::Create(options).value();
  }
  void Score(const std::string& id, const std::string& reward) {
    scorer_->Score(id, LeaseFor(reward), OneAnswer(), [this](absl::StatusOr<TrajectoryGroup> group) {
      MutexLock lock(&mutex_);
      results_.push_back(std::move(group));
      thread_ = std::this_thread::get_id();
    });
  }
  absl::StatusOr<TrajectoryGroup> AwaitResult() {
    MutexLock lock(&mutex_);
    auto there = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !results_.empty(); };
    if (!mutex_.AwaitWithTimeout(Condition(&there), kDeadline)) return absl::DeadlineExceededError("no result");
    auto one = std::move(results_.front());
    results_.erase(results_.begin());
    return one;
  }

  testing::FakeRemoteScorer remote_;
  std::unique_ptr<Scorer> scorer_;
  Mutex mutex_;
  std::vector<absl::StatusOr<TrajectoryGroup>> results_ ABSL_GUARDED_BY(mutex_);
  std::thread::id thread_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(ScorerTest, JudgesOnAThreadOfItsOwn) {
  Start({});
  Score("a", "dense");
  EXPECT_FLOAT_EQ(AwaitResult()->samples[0].reward, 1);
  MutexLock lock(&mutex_);
  EXPECT_NE(thread_, std::this_thread::get_id());
}

TEST_F(ScorerTest, AsksThoseOutsideAndDoesNotWaitForOneGroupBeforeTheNext) {
  Start({});
  Score("slow", "python:judge");
  auto asked = remote_.AwaitAsked();
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(asked->first.texts, (std::vector<std::string>{"2 tokens"}));
  Score("quick", "dense");
  EXPECT_FLOAT_EQ(AwaitResult()->samples[0].reward, 1);
  asked->second(RemoteScorer::Rewards{RemoteReward{.value = 0.25f}});
  EXPECT_FLOAT_EQ(AwaitResult()->samples[0].reward, 0.25f);
}

TEST_F(ScorerTest, ACallThatHangsIsEndedInItsTime) {
  Start({.rules = {.timeout = absl::Milliseconds(20), .attempts = 2, .pause = absl::ZeroDuration()}});
  Score("a", "python:judge");
  const absl::Status failed = AwaitResult().status();
  EXPECT_EQ(ErrorReason(failed), "REWARD_FAILED") << failed;
  EXPECT_TRUE(remote_.AwaitCancelled("a/2"));
}

TEST_F(ScorerTest, WhatIsCancelledEndsAtOnceAndItsCallToo) {
  Start({});
  Score("a", "python:judge");
  auto asked = remote_.AwaitAsked();
  ASSERT_TRUE(asked.has_value());
  scorer_->Cancel("a");
  scorer_->Cancel("nobody");
  EXPECT_TRUE(absl::IsCancelled(AwaitResult().status()));
  EXPECT_TRUE(remote_.AwaitCancelled(asked->first.id));
  asked->second(RemoteScorer::Rewards{RemoteReward{}});  // too late: no caller waits any more
  Score("b", "dense");
  EXPECT_TRUE(AwaitResult().ok());
}

TEST_F(ScorerTest, WaitsForAnUnreachableScorerAndGoesOnWhenItIsBack) {
  remote_.SetThere(absl::UnavailableError("away"));
  Start({.reward = "0.5*python:judge"});
  int changes = 0;
  scorer_->SetAvailabilityListener([&changes] { ++changes; });
  EXPECT_TRUE(absl::IsUnavailable(scorer_->Availability()));
  Score("a", "python:judge");
  remote_.SetThere(absl::OkStatus());
  EXPECT_EQ(changes, 1);
  EXPECT_TRUE(scorer_->Availability().ok());
  auto asked = remote_.AwaitAsked();
  ASSERT_TRUE(asked.has_value());
  asked->second(RemoteScorer::Rewards{RemoteReward{.value = 1}});
  EXPECT_TRUE(AwaitResult().ok());
}

TEST_F(ScorerTest, KnowsWhoseAbsenceStopsTheRunHoweverManyRewardsLeasesNamed) {
  Start({.reward = "python:judge"});
  for (int i = 1; i <= 200; ++i) ASSERT_TRUE(scorer_->Check(absl::StrCat(i, "*dense")).ok());
  remote_.SetThere(absl::UnavailableError("no worker"));
  EXPECT_TRUE(absl::IsUnavailable(scorer_->Availability()));
}

TEST_F(ScorerTest, StoppingEndsWhatRunsAndAnswersMayStillCome) {
  Start({});
  Score("a", "python:judge");
  auto asked = remote_.AwaitAsked();
  ASSERT_TRUE(asked.has_value());
  scorer_->Stop();
  EXPECT_TRUE(absl::IsCancelled(AwaitResult().status()));
  Score("b", "dense");
  EXPECT_TRUE(absl::IsCancelled(AwaitResult().status()));
  scorer_.reset();
  asked->second(RemoteScorer::Rewards{RemoteReward{}});
}

TEST_F(ScorerTest, RefusesRewardsThatItCannotGive) {
  EXPECT_EQ(ErrorReason(Scorer::Create({.reward = "math"}).status()), "NO_TEXT");
  EXPECT_EQ(ErrorReason(Scorer::Create({.reward = "http", .decode = CountTokens}).status()), "NO_SCORER");
  EXPECT_EQ(ErrorReason(Scorer::Create({.reward = "python:a", .decode = CountTokens}).status()), "NO_SCORER");
  EXPECT_EQ(ErrorReason(Scorer::Create({.rules = {.judge = "j"}, .reward = "math", .decode = CountTokens}).status()),
            "NO_SCORER");
  Start({});
  EXPECT_EQ(ErrorReason(scorer_->Check("http")), "NO_SCORER");
  EXPECT_EQ(ErrorReason(scorer_->Check("charm")), "BAD_REWARD_FORMULA");
  Score("a", "charm");
  EXPECT_EQ(ErrorReason(AwaitResult().status()), "BAD_REWARD_FORMULA");
}

}  // namespace
}  // namespace syncopate::rollouter
