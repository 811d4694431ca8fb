#include "rollouter/engine/readiness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "tests/support/status_matchers.h"

namespace syncopate::rollouter {
namespace {

using syncopate::testing::HasReason;
using syncopate::testing::IsOk;

EngineStatus Serving(const PolicyVersion& version) {
  EngineStatus status;
  status.state = EngineStatus::State::kRunning;
  status.serving = version;
  return status;
}

TEST(ReadinessTest, AnAllowedVersionIsWithinTheGivenStepsOfTheNewest) {
  EXPECT_THAT(CheckReady(Serving({1, 6}), {1, 10}, 4), IsOk());
  EXPECT_THAT(CheckReady(Serving({1, 5}), {1, 10}, 4), HasReason("STALE"));
  EXPECT_THAT(CheckReady(Serving({1, 11}), {1, 10}, 0), IsOk()) << "the directory may be older than the install";
}

TEST(ReadinessTest, AnotherTrainersVersionIsNotAllowedWhateverItsStep) {
  EXPECT_THAT(CheckReady(Serving({1, 50}), {2, 40}, 4), HasReason("STALE"));
  EXPECT_THAT(CheckReady(Serving({2, 1}), {1, 50}, 4), IsOk());
}

TEST(ReadinessTest, ServesNothingBeforeTheFirstWeightsAndAlsoNotPausedDrainedOrFailed) {
  EXPECT_THAT(CheckReady(EngineStatus(), {}, 4), HasReason("NO_WEIGHTS"));
  EngineStatus status = Serving({1, 1});
  EXPECT_THAT(CheckReady(status, {}, 4), IsOk()) << "no directory yet";
  status.state = EngineStatus::State::kPaused;
  EXPECT_THAT(CheckReady(status, {1, 1}, 4), HasReason("PAUSED"));
  for (auto state : {EngineStatus::State::kDraining, EngineStatus::State::kDrained}) {
    status.state = state;
    EXPECT_THAT(CheckReady(status, {1, 1}, 4), HasReason("DRAINING"));
  }
  status.state = EngineStatus::State::kFailed;
  status.failure = absl::InternalError("out of memory");
  EXPECT_THAT(CheckReady(status, {1, 1}, 4), HasReason("ENGINE_FAILED"));
}

TEST(ReadinessTest, StaysReadyWhileItHasGivenUpItsDeviceForATurn) {
  EngineStatus status;
  status.yielded = true;
  for (auto state : {EngineStatus::State::kAsleep, EngineStatus::State::kWaitingForWeights}) {
    status.state = state;
    status.draining = false;
    EXPECT_THAT(CheckReady(status, {1, 9}, 0), IsOk());
    status.draining = true;
    EXPECT_THAT(CheckReady(status, {1, 9}, 0), HasReason("DRAINING")) << "it accepts nothing";
  }
  status.draining = false;
  status.state = EngineStatus::State::kFailed;
  EXPECT_THAT(CheckReady(status, {1, 9}, 0), HasReason("ENGINE_FAILED"));
  status.state = EngineStatus::State::kAsleep;
  status.yielded = false;
  EXPECT_THAT(CheckReady(status, {1, 9}, 0), HasReason("ASLEEP"));
}

}  // namespace
}  // namespace syncopate::rollouter
