#include "rollouter/environment/environment_fleet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/fake_remote_environment.h"

namespace syncopate::rollouter {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class EnvironmentFleetTest : public ::testing::Test {
 protected:
  void Open(const std::string& id) {
    fleet_.Open({.id = id, .environment = "game", .row_json = ""}, [](const absl::StatusOr<EnvironmentMessage>&) {});
  }

  testing::FakeRemoteEnvironment first_, second_;
  EnvironmentFleet fleet_{{&first_, &second_}};
};

TEST_F(EnvironmentFleetTest, EpisodesAreSharedOutAndStayWithTheirWorker) {
  for (const char* id : {"a", "b", "c"}) Open(id);
  EXPECT_EQ(first_.AwaitCall()->episode, "a");
  EXPECT_EQ(second_.AwaitCall()->episode, "b");
  EXPECT_EQ(first_.AwaitCall()->episode, "c");
  fleet_.Act("b", {.turn = 1, .text = "go"}, nullptr);
  EXPECT_EQ(second_.AwaitCall()->text, "go");
  fleet_.Close("b", "over");
  EXPECT_THAT(second_.closed(), ElementsAre("b"));
  EXPECT_THAT(first_.closed(), IsEmpty());
  Open("d");
  EXPECT_EQ(second_.AwaitCall()->episode, "d") << "the one with the fewest that are open";
  EXPECT_EQ(fleet_.counters().cancels, 1);
}

TEST_F(EnvironmentFleetTest, AWorkerThatIsAwayGetsNoNewEpisodes) {
  first_.SetThere(absl::UnavailableError("away"));
  for (const char* id : {"a", "b"}) Open(id);
  EXPECT_EQ(second_.calls(), 2u);
  EXPECT_TRUE(fleet_.Availability("game").ok());
  second_.SetThere(absl::UnavailableError("away, too"));
  EXPECT_EQ(fleet_.Availability("game").message(), "away");
  Open("c");
  EXPECT_EQ(first_.calls(), 1u) << "it waits where the fewest are";
}

TEST_F(EnvironmentFleetTest, SaysThatThereIsNoSuchEnvironmentAsSoonAsOneWorkerDoes) {
  first_.SetThere(absl::UnavailableError("away"));
  second_.SetThere(absl::NotFoundError("it has another one"));
  EXPECT_TRUE(absl::IsNotFound(fleet_.Availability("game")));
}

TEST_F(EnvironmentFleetTest, AChangeOfEachWorkerIsTold) {
  int changes = 0;
  fleet_.SetAvailabilityListener([&changes] { ++changes; });
  first_.SetThere(absl::UnavailableError("away"));
  second_.SetThere(absl::UnavailableError("away"));
  EXPECT_EQ(changes, 2);
}

}  // namespace
}  // namespace syncopate::rollouter
