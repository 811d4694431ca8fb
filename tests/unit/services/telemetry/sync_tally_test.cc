#include "services/telemetry/sync_tally.h"

#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace syncopate::telemetry {
namespace {

v1::SyncRecord Sync(const std::string& result, double total_seconds = 0, double pause_seconds = 0) {
  v1::SyncRecord record;
  record.set_result(result);
  (*record.mutable_seconds())["total"] = total_seconds;
  (*record.mutable_bytes_by_kind())["full"] = 10;
  record.set_pause_seconds(pause_seconds);
  return record;
}

TEST(SyncTallyTest, CountsManyMoreThanAnybodyLists) {
  SyncTally tally;
  for (int i = 1; i <= 16000; ++i) tally.Add(Sync("ok", 1e-6 * i, 1e-3));
  EXPECT_EQ(tally.count(), 16000);
  EXPECT_EQ(tally.bytes(), 160000);
  EXPECT_NEAR(absl::ToDoubleSeconds(tally.total().Quantile(0.5)), 0.008, 0.008 * 0.03);
  EXPECT_NEAR(absl::ToDoubleSeconds(tally.total().Quantile(0.99)), 0.01584, 0.01584 * 0.03);
  EXPECT_EQ(tally.total().longest, absl::Milliseconds(16));
  EXPECT_EQ(tally.pause().Quantile(0.5), absl::Milliseconds(1)) << "no quantile is above the longest";
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
  EXPECT_EQ(tally.bytes(), 50);
  EXPECT_EQ(tally.total().histogram.count(), 2) << "of those that brought a version into use";
}

TEST(SyncTallyTest, IsTheSameAfterItWasWrittenDownInParts) {
  SyncTally whole, read;
  for (int i = 0; i < 300; ++i) {
    const v1::SyncRecord sync = Sync(i % 7 == 0 ? "DEADLINE" : "ok", 1e-6 * i * i * i, 1e-6 * i);
    whole.Add(sync);
    SyncTally one;
    one.Add(sync);
    read.Merge(SyncTally::FromProto(one.ToProto()));
  }
  using google::protobuf::util::MessageDifferencer;
  EXPECT_TRUE(MessageDifferencer::Equals(read.ToProto(), whole.ToProto()));
  const SyncTally again = SyncTally::FromProto(whole.ToProto());
  EXPECT_TRUE(MessageDifferencer::Equals(again.ToProto(), whole.ToProto()));
}

TEST(SyncTallyTest, FiguresThatCannotBeDoNoHarm) {
  v1::SyncTally message;
  (*message.mutable_counts())["ok"] = -5;
  (*message.mutable_counts())["unheard of"] = 7;
  (*message.mutable_bytes_by_kind())["full"] = -5;
  v1::SyncTally::Times::Class* one = message.mutable_total()->add_classes();
  one->set_up_to_seconds(std::numeric_limits<double>::quiet_NaN());
  one->set_count(-3);
  message.mutable_total()->set_longest_seconds(-1);
  const SyncTally tally = SyncTally::FromProto(message);
  EXPECT_EQ(tally.count(), 0);
  EXPECT_EQ(tally.bytes(), 0);
  EXPECT_EQ(tally.total().Quantile(0.5), absl::ZeroDuration());
}

}  // namespace
}  // namespace syncopate::telemetry
