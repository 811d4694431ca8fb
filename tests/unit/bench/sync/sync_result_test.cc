#include "bench/sync/sync_result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace syncopate::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

SyncSample Sample(double transfer, const std::string& result = "ok") {
  SyncSample sample;
  sample.replica = "rollouter-0";
  sample.transport = "ipc";
  sample.transport_reason = "one host";
  sample.result = result;
  sample.bytes = 8'000'000'000;
  sample.seconds = {{"stage", 0.005},  {"prepare", 0.001}, {"transfer", transfer},
                    {"verify", 0.002}, {"install", 0.001}, {"total", 0.009 + transfer}};
  sample.pause_seconds = 0.0007;
  return sample;
}

SyncResult Result() {
  SyncResult result;
  result.sync_case.tensor_parallel = 2;
  result.machine = "4 x NVIDIA H200";
  result.weight_bytes = 8'000'000'000;
  result.samples = {Sample(0.010), Sample(0.012), Sample(0.020), Sample(9.0, "DEADLINE")};
  result.ceiling = {"copy engines", 400e9};
  result.decode = {{"rollouter-0", 1000, 1.0, 80, 0.1, 0.001}};
  result.steps = {.wait_seconds = ComputeSpread({0.0004}),
                  .stage_seconds = ComputeSpread({0.005}),
                  .beside_seconds = ComputeSpread({0.102}),
                  .calm_seconds = ComputeSpread({0.1})};
  result.digests_equal = true;
  return result;
}

TEST(SyncResultTest, MedianAndExtremes) {
  EXPECT_EQ(ComputeSpread({}).count, 0);
  EXPECT_EQ(ComputeSpread({3}).median, 3);
  EXPECT_EQ(ComputeSpread({4, 1}).median, 2.5);
  const Spread spread = ComputeSpread({5, 1, 9});
  EXPECT_EQ(spread.median, 5);
  EXPECT_EQ(spread.min, 1);
  EXPECT_EQ(spread.max, 9);
}

TEST(SyncResultTest, CountsOnlySyncsThatWentWell) {
  const auto spreads = PhaseSpreads(Result().samples);
  EXPECT_EQ(spreads.at("transfer").count, 3);
  EXPECT_DOUBLE_EQ(spreads.at("transfer").median, 0.012);
  EXPECT_DOUBLE_EQ(spreads.at("transfer").max, 0.020);
}

TEST(SyncResultTest, TheRateIsThatOfOneReceivingRank) {
  EXPECT_DOUBLE_EQ(ReceiverRates(Result()).median, 4e9 / 0.012);
  EXPECT_NEAR(ToJson(Result())["ceiling"]["ratio"].get<double>(), 4e9 / 0.012 / 400e9, 1e-9);
}

TEST(SyncResultTest, SaysWhatShareOfATotalItsPhasesLeaveOpen) {
  std::vector<SyncSample> samples = {Sample(0.010)};
  EXPECT_NEAR(WorstPhaseGap(samples), 0, 1e-9);
  samples[0].seconds["total"] *= 2;
  EXPECT_NEAR(WorstPhaseGap(samples), 0.5, 1e-9);
}

TEST(SyncResultTest, TheCommitCountsFromThePublicationOfAttemptsThatBeganWithOne) {
  std::vector<SyncSample> samples = {Sample(0.010), Sample(0.012)};
  // The replica was busy when the version was published: its attempt began later, by an unknown time.
  samples[1].seconds["stage"] = 0;
  EXPECT_EQ(CommitTimes(samples, /*staged=*/false).count, 1);
  EXPECT_NEAR(CommitTimes(samples, /*staged=*/false).median, 0.014, 1e-9);
  EXPECT_NEAR(CommitTimes(samples, /*staged=*/true).median, 0.019, 1e-9);
  EXPECT_NEAR(ToJson(Result())["publish_to_commit_ratio"].get<double>(), 0.016 / 0.012, 1e-9);
}

TEST(SyncResultTest, SaysWhatAPublicationCostsTheStepsBesideIt) {
  EXPECT_NEAR(ToJson(Result())["steps"]["rate_share"].get<double>(), 0.1 / 0.102, 1e-9);
  EXPECT_EQ(ToJson(Result())["trainer_stall_seconds"]["median"], 0.0004);
  EXPECT_THAT(ToText(Result()), HasSubstr("102.000 ms beside a publication and 100.000 ms otherwise: 0.980"));
  EXPECT_EQ(StepCosts().rate_share(), 0);
}

TEST(SyncResultTest, ComparesDecodingDuringTransfersWithCalm) {
  EXPECT_DOUBLE_EQ(DecodeShare(Result()), 0.8);
  EXPECT_EQ(DecodeShare(SyncResult()), 0);
}

TEST(SyncResultTest, TellsPeopleWhatMatters) {
  SyncResult result = Result();
  result.late = {true, 2.5, ComputeSpread({0.02})};
  std::string text = ToText(result);
  EXPECT_THAT(text, HasSubstr("ceiling 400.00 GB/s (copy engines), ratio 0.833"));
  EXPECT_THAT(text, HasSubstr("serves 2.50 s after its start"));
  EXPECT_THAT(text, HasSubstr("digests equal"));
  result.digests_equal = false;
  EXPECT_THAT(ToText(result), HasSubstr("digests DIFFER"));
}

TEST(SyncResultTest, LeavesOutWhatDidNotHappen) {
  EXPECT_FALSE(ToJson(Result()).contains("late_joiner"));
  EXPECT_FALSE(ToJson(Result()).contains("fault"));
  SyncResult result = Result();
  result.fault = {true, 5.1, 0, 5.6, {"rollouter-1 MEMBER_DEAD"}, true};
  EXPECT_THAT(ToText(result), HasSubstr("noticed after 5.10 s (rollouter-1 MEMBER_DEAD), all survivors serve"));
  EXPECT_EQ(ToJson(result)["fault"]["recovered_seconds"], 5.6);
  result.ceiling = {};
  EXPECT_THAT(ToText(result), Not(HasSubstr("ceiling")));
}

}  // namespace
}  // namespace syncopate::bench
