#include "base/daemon/health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "tests/support/hand_clock.h"
#include "tests/support/status_matchers.h"

namespace syncopate::daemon {
namespace {

using syncopate::testing::HandClock;
using syncopate::testing::HasMessage;
using syncopate::testing::HasReason;
using syncopate::testing::IsOk;
using ::testing::HasSubstr;

class HealthTest : public ::testing::Test {
 protected:
  HandClock clock_{absl::UnixEpoch() + absl::Hours(1)};
  Health health_{&clock_};
};

TEST_F(HealthTest, IsNotLiveOnceTheEventLoopHasStoodStillForTenSecondsAndAgainWhenItMoves) {
  health_.Moved();
  clock_.Advance(absl::Milliseconds(9999));
  EXPECT_THAT(health_.Live(), IsOk());
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_THAT(health_.Live(), HasReason("STALLED"));
  EXPECT_THAT(health_.Live(), HasMessage(HasSubstr("10s")));
  health_.Moved();
  EXPECT_THAT(health_.Live(), IsOk());
}

TEST_F(HealthTest, IsLiveWhileItStartsAndWhileItStopsHoweverLongThatTakes) {
  clock_.Advance(absl::Hours(1));
  EXPECT_THAT(health_.Live(), IsOk());
  health_.Moved();
  health_.BeginStop("a test");
  clock_.Advance(absl::Hours(1));
  EXPECT_THAT(health_.Live(), IsOk());
}

TEST_F(HealthTest, IsReadyOnlyWhileTheDaemonSaysSo) {
  EXPECT_THAT(health_.Ready(), HasReason("STARTING"));
  health_.SetReady(absl::OkStatus());
  EXPECT_THAT(health_.Ready(), IsOk());
  health_.SetReady(Error(absl::StatusCode::kUnavailable, "STALE", "serves an old version"));
  EXPECT_THAT(health_.Ready(), HasReason("STALE"));
}

TEST_F(HealthTest, IsNotReadyFromTheFirstWordOfItsEndWhateverIsSaidLater) {
  health_.SetReady(absl::OkStatus());
  health_.BeginStop("asked to by a signal");
  health_.BeginStop("another reason");
  health_.SetReady(absl::OkStatus());
  EXPECT_THAT(health_.Ready(), HasReason("STOPPING"));
  EXPECT_THAT(health_.Ready(), HasMessage(HasSubstr("asked to by a signal")));
}

TEST_F(HealthTest, AWaitForWorkIsNoStandstillIfTheLoopComesRound) {
  for (int second = 0; second < 600; ++second) {  // a sync that takes ten minutes
    health_.Moved();
    clock_.Advance(absl::Seconds(1));
    ASSERT_THAT(health_.Live(), IsOk());
  }
}

}  // namespace
}  // namespace syncopate::daemon
