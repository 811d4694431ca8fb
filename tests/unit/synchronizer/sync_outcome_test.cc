#include "synchronizer/sync_outcome.h"

#include <gtest/gtest.h>

namespace syncopate::synchronizer {
namespace {

TEST(SyncOutcomeTest, OnlyWhatNothingNewerReplacedHasFailed) {
  EXPECT_EQ(ClassifySyncResult("ok"), SyncOutcome::kDone);
  EXPECT_EQ(ClassifySyncResult("relabelled"), SyncOutcome::kRelabelled);
  for (const char* result : {"SUPERSEDED", "VERSION_NOT_STAGED"}) {
    EXPECT_EQ(ClassifySyncResult(result), SyncOutcome::kSuperseded) << result;
  }
  for (const char* result : {"connected", "not_connected"}) {
    EXPECT_EQ(ClassifySyncResult(result), SyncOutcome::kRehearsed) << result;
  }
  for (const char* result : {"DEADLINE", "PEER_LOST", "DIGEST_MISMATCH", "NON_FINITE", ""}) {
    EXPECT_EQ(ClassifySyncResult(result), SyncOutcome::kFailed) << result;
  }
}

}  // namespace
}  // namespace syncopate::synchronizer
