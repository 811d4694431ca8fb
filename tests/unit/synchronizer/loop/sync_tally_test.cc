#include "synchronizer/loop/sync_tally.h"

#include <gtest/gtest.h>

#include <string>

namespace syncopate::synchronizer {
namespace {

SyncRecord Sync(const std::string& result, double total_seconds = 0, double pause_seconds = 0) {
  SyncRecord record;
  record.SetResult(result);
  record.seconds.total = total_seconds;
  record.bytes_by_kind.full = 10;
  record.bytes_by_kind.mapped = 1000;  // not sent
  record.pause_seconds = pause_seconds;
  return record;
}

TEST(SyncTallyTest, CountsManyMoreThanAnybodyLists) {
  SyncTally tally;
  for (int i = 1; i <= 16000; ++i) tally.Add(Sync("ok", 1e-6 * i, 1e-3));
  EXPECT_EQ(tally.count(), 16000);
  EXPECT_EQ(tally.sums().bytes.total(), 160000);
  EXPECT_EQ(tally.sums().bytes.mapped, 16000000);
  EXPECT_NEAR(absl::ToDoubleSeconds(tally.sums().total.Quantile(0.5)), 0.008, 0.008 * 0.03);
  EXPECT_NEAR(absl::ToDoubleSeconds(tally.sums().total.Quantile(0.99)), 0.01584, 0.01584 * 0.03);
  EXPECT_EQ(tally.sums().total.longest, absl::Milliseconds(16));
  EXPECT_EQ(tally.sums().pause.Quantile(0.5), absl::Milliseconds(1)) << "no quantile is above the longest";
}

TEST(SyncTallyTest, ByTheirEndAndWithoutRehearsals) {
  SyncTally tally;
  for (const char* result : {"ok", "relabelled", "SUPERSEDED", "DEADLINE", "PEER_LOST", "connected", "not_connected"}) {
    tally.Add(Sync(result, 1));
  }
  EXPECT_EQ(tally.count(), 5);
  EXPECT_EQ(tally.Count(SyncOutcome::kDone), 1);
  EXPECT_EQ(tally.Count(SyncOutcome::kRelabelled), 1);
  EXPECT_EQ(tally.Count(SyncOutcome::kSuperseded), 1);
  EXPECT_EQ(tally.Count(SyncOutcome::kFailed), 2);
  EXPECT_EQ(tally.sums().bytes.total(), 50);
  EXPECT_EQ(tally.sums().total.histogram.count(), 2) << "of those that brought a version into use";
}

TEST(SyncTallyTest, MergingIsCountingBoth) {
  SyncTally whole, merged;
  for (int i = 0; i < 300; ++i) {
    const SyncRecord sync = Sync(i % 7 == 0 ? "DEADLINE" : "ok", 1e-6 * i * i * i, 1e-6 * i);
    whole.Add(sync);
    SyncTally one;
    one.Add(sync);
    merged.Merge(one);
  }
  EXPECT_EQ(merged.count(), 300);
  EXPECT_EQ(merged.sums().outcomes, whole.sums().outcomes);
  EXPECT_EQ(merged.sums().bytes, whole.sums().bytes);
  EXPECT_EQ(merged.sums().total.histogram.Classes(), whole.sums().total.histogram.Classes());
  EXPECT_EQ(merged.sums().pause.longest, whole.sums().pause.longest);
}

}  // namespace
}  // namespace syncopate::synchronizer
