#include "trainer/data/prompt_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/trainer/data/group_factory.h"
#include "trainer/data/flow_meter.h"

namespace syncopate::trainer {
namespace {

TEST(PromptQueueTest, LeasesInOrderAndPutsBackAtTheHeadLowestFirst) {
  PromptQueue queue({});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(queue.Lease(), Id(i));
  queue.PutBack({0, 3});
  queue.PutBack({0, 1});
  EXPECT_EQ(queue.Lease(), Id(1, 2));
  EXPECT_EQ(queue.Lease(), Id(3, 2));
  EXPECT_EQ(queue.Lease(), Id(4));
}

TEST(PromptQueueTest, EndsAfterMaxGroupsAcrossPasses) {
  PromptQueue queue({.prompts_per_pass = 2, .max_groups = 3});
  EXPECT_EQ(queue.Lease(), Id(0));
  EXPECT_EQ(queue.Lease(), Id(1));
  EXPECT_EQ(queue.Lease(), Id(0, 1, /*pass=*/1));
  EXPECT_EQ(queue.Head(), std::nullopt);
  queue.PutBack({0, 1});
  EXPECT_EQ(queue.Lease(), Id(1, 2));
}

TEST(PromptQueueTest, RemembersConsumedPromptsByAWatermarkAndItsExceptions) {
  PromptQueue queue({});
  for (int i = 0; i < 5; ++i) queue.Lease();
  queue.Consume({0, 0});
  queue.Consume({0, 1});
  queue.Consume({0, 3});
  DataState state = queue.State();
  EXPECT_EQ(state.next, (GroupId{0, 5}));
  EXPECT_EQ(state.consumed_below, (GroupId{0, 2}));
  EXPECT_THAT(state.consumed_above, ::testing::ElementsAre(GroupId{0, 3}));
  EXPECT_EQ(state.attempts.size(), 2u);
  queue.Consume({0, 2});
  EXPECT_EQ(queue.State().consumed_below, (GroupId{0, 4}));
  EXPECT_TRUE(queue.State().consumed_above.empty());
  EXPECT_TRUE(queue.IsConsumed({0, 0}));
  EXPECT_FALSE(queue.IsConsumed({0, 4}));
}

TEST(PromptQueueTest, KnowsWhichAttemptAtAConsumedPromptWasAcceptedAlsoAfterARestore) {
  PromptQueue before({});
  for (int i = 0; i < 3; ++i) before.Lease();
  before.PutBack({0, 1});
  const LeaseId second = before.Lease();
  ASSERT_EQ(second, Id(1, 2));
  before.ConsumeAccepted(second);
  before.ConsumeAccepted(Id(0));
  before.Consume({0, 2});  // the prompt is given up
  for (const PromptQueue& queue : {before, PromptQueue({}, before.State())}) {
    EXPECT_TRUE(queue.WasAccepted(Id(1, 2)));
    EXPECT_FALSE(queue.WasAccepted(Id(1, 1)));
    EXPECT_TRUE(queue.WasAccepted(Id(0, 1)));
    EXPECT_FALSE(queue.WasAccepted(Id(2, 1)));
    EXPECT_TRUE(queue.IsConsumed({0, 2}));
  }
  EXPECT_THAT(before.State().accepted, ::testing::ElementsAre(Id(1, 2), Id(0)));
}

TEST(PromptQueueTest, RemembersAttemptsOfTheLast65536ConsumedPromptsAndNoMore) {
  PromptQueue queue({});
  constexpr int64_t kLast = static_cast<int64_t>(PromptQueue::kRemembered);
  for (int64_t i = 0; i <= kLast; ++i) queue.ConsumeAccepted(queue.Lease());
  EXPECT_FALSE(queue.WasAccepted(Id(0))) << "too long ago";
  EXPECT_TRUE(queue.IsConsumed({0, 0})) << "and never leased again";
  EXPECT_TRUE(queue.WasAccepted(Id(1)));
  EXPECT_TRUE(queue.WasAccepted(Id(kLast)));
  EXPECT_EQ(queue.State().accepted.size(), PromptQueue::kRemembered);
}

TEST(PromptQueueTest, GoesOnFromAStateWithNewAttemptsForWhatWasNotConsumed) {
  PromptQueue before({});
  for (int i = 0; i < 4; ++i) before.Lease();
  before.Consume({0, 1});
  PromptQueue after({}, before.State());
  EXPECT_EQ(after.Lease(), Id(0, 2));
  EXPECT_EQ(after.Lease(), Id(2, 2));
  EXPECT_EQ(after.Lease(), Id(3, 2));
  EXPECT_EQ(after.Lease(), Id(4));
}

TEST(FlowMeterTest, GivesTheSizingLaw) {
  FlowMeter meter;
  EXPECT_EQ(meter.suggested_target_staleness(), 0);
  for (int i = 0; i < 5; ++i) meter.OnStepDone(absl::UnixEpoch() + absl::Seconds(2 * i));
  meter.OnGroup(absl::Seconds(4));
  meter.OnGroup(absl::Seconds(9));
  EXPECT_DOUBLE_EQ(meter.step_interval_seconds(), 2);
  EXPECT_DOUBLE_EQ(meter.mean_group_seconds(), 6.5);
  EXPECT_DOUBLE_EQ(meter.suggested_target_staleness(), 3.25);
  EXPECT_DOUBLE_EQ(meter.suggested_max_staleness(), 5);  // 9 / 2, rounded up
}

// Steps of 3 s, of which the trainer waits for 1 s.
class FlowMeterStepsTest : public ::testing::Test {
 protected:
  void Steps(int count, int64_t rollouters, absl::Duration interval = absl::Seconds(3)) {
    for (int i = 0; i < count; ++i) {
      now_ += interval;
      meter_.OnRolloutStep(absl::Seconds(1), rollouters, now_);
      meter_.OnStepDone(now_);
    }
  }

  FlowMeter meter_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(FlowMeterStepsTest, TellsTheTimeOfAStepFromTheWaitForItsBatch) {
  Steps(1, 2);
  EXPECT_EQ(meter_.busy_seconds(), 0) << "the first step has no begin";
  Steps(8, 2);
  EXPECT_DOUBLE_EQ(meter_.busy_seconds(), 2);
  EXPECT_DOUBLE_EQ(meter_.settled_interval_seconds(), 3);
}

TEST_F(FlowMeterStepsTest, APauseIsNoStepTime) {
  Steps(10, 2);
  Steps(1, 2, absl::Hours(1));
  EXPECT_DOUBLE_EQ(meter_.busy_seconds(), 2);
  EXPECT_DOUBLE_EQ(meter_.settled_interval_seconds(), 3);
}

TEST_F(FlowMeterStepsTest, ThePaceIsThatOfThePresentRollouters) {
  Steps(20, 2);
  Steps(8, 3, absl::Seconds(2));
  EXPECT_EQ(meter_.settled_interval_seconds(), 0) << "seven whole steps since";
  Steps(1, 3, absl::Seconds(2));
  EXPECT_DOUBLE_EQ(meter_.settled_interval_seconds(), 2);
}

}  // namespace
}  // namespace syncopate::trainer
