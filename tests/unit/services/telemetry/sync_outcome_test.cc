#include "services/telemetry/sync_outcome.h"

#include <gtest/gtest.h>

namespace syncopate::telemetry {
namespace {

TEST(SyncOutcomeTest, OnlyWhatNothingNewerReplacedHasFailed) {
  EXPECT_EQ(SyncOutcomeOf("ok"), SyncOutcome::kDone);
  EXPECT_EQ(SyncOutcomeOf("relabelled"), SyncOutcome::kRelabelled);
  for (const char* result : {"SUPERSEDED", "VERSION_NOT_STAGED"}) {
    EXPECT_EQ(SyncOutcomeOf(result), SyncOutcome::kSuperseded) << result;
  }
  for (const char* result : {"connected", "not_connected"}) {
    EXPECT_EQ(SyncOutcomeOf(result), SyncOutcome::kRehearsed) << result;
  }
  for (const char* result : {"DEADLINE", "PEER_LOST", "DIGEST_MISMATCH", "NON_FINITE", ""}) {
    EXPECT_EQ(SyncOutcomeOf(result), SyncOutcome::kFailed) << result;
  }
}

}  // namespace
}  // namespace syncopate::telemetry
