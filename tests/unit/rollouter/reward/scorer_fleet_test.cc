#include "rollouter/reward/scorer_fleet.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/support/fake_remote_scorer.h"

namespace syncopate::rollouter {
namespace {

class ScorerFleetTest : public ::testing::Test {
 protected:
  void Score(const std::string& id) {
    RemoteItem item;
    item.id = id;
    item.reward = "r";
    fleet_.Score(std::move(item), [this](const absl::StatusOr<RemoteScorer::Rewards>&) { ++done_; });
  }

  testing::FakeRemoteScorer first_, second_;
  ScorerFleet fleet_{{&first_, &second_}};
  int done_ = 0;
};

TEST_F(ScorerFleetTest, ItemsGoToOneWorkerAfterTheOther) {
  for (const char* id : {"a", "b", "c"}) Score(id);
  EXPECT_EQ(second_.AwaitAsked()->first.id, "b");
  auto last = first_.AwaitAsked();
  EXPECT_EQ(last->first.id, "c");
  last->second(RemoteScorer::Rewards());
  EXPECT_EQ(done_, 1);
  fleet_.Cancel("b");
  EXPECT_TRUE(second_.AwaitCancelled("b"));
  fleet_.Cancel("c");  // it is over
  fleet_.Cancel("a");
  EXPECT_TRUE(first_.AwaitCancelled("a"));
}

TEST_F(ScorerFleetTest, AWorkerThatIsAwayOrBusyGetsNoItemWhileAnotherCanBeCalled) {
  first_.SetThere(absl::UnavailableError("away"));
  for (const char* id : {"a", "b"}) Score(id);
  EXPECT_EQ(second_.AwaitAsked()->first.id, "b");
  EXPECT_EQ(second_.AwaitAsked()->first.id, "a");
  EXPECT_TRUE(fleet_.Availability("r").ok());
  second_.SetThere(absl::ResourceExhaustedError("busy"));
  EXPECT_TRUE(absl::IsResourceExhausted(fleet_.Availability("r"))) << "it can be called later";
  second_.SetThere(absl::UnavailableError("away, too"));
  EXPECT_EQ(fleet_.Availability("r").message(), "away");
}

}  // namespace
}  // namespace syncopate::rollouter
