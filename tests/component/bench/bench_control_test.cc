// `syncopate bench control`, short and small. The tests check that each part measures something, not the figures.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/component/bench/bench_outcome.h"
#include "tests/support/process.h"

namespace syncopate::testing {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;

constexpr absl::Duration kPatience = absl::Seconds(120);

BenchOutcome Bench(std::vector<std::string> more) {
  TempDir temp;
  std::vector<std::string> args = {"bench", "control", "--json"};
  args.insert(args.end(), more.begin(), more.end());
  return AwaitBench(Process::Start({SYNCOPATE_BINARY, args, temp.path() + "/log"}), kPatience);
}

// Runs one part for a short time.
BenchOutcome Short(const std::string& part) {
  return Bench({part, "--rounds", "1", "--round-seconds", "0.3", "--warmup-seconds", "0.1", "--steady-seconds", "0.5",
                "--members", "20", "--callers", "8", "--streams", "2"});
}

// Medians by name.
std::map<std::string, double> Figures(const BenchOutcome& outcome) {
  std::map<std::string, double> figures;
  if (!outcome.result.is_object() || !outcome.result.contains("figures")) return figures;
  for (const json& figure : outcome.result["figures"]) figures[figure["name"]] = figure["median"];
  return figures;
}

TEST(BenchControlTest, MeasuresUnaryCalls) {
  const BenchOutcome outcome = Short("unary");
  EXPECT_EQ(outcome.code, 0) << outcome.log;
  auto figures = Figures(outcome);
  EXPECT_GT(figures["GetStatus, 8 in flight"], 0);
  EXPECT_GT(figures["latency p99"], 0);
}

TEST(BenchControlTest, MeasuresOverloadAgainstAPeakOfTheSameRun) {
  const BenchOutcome outcome = Short("overload");
  EXPECT_EQ(outcome.code, 0) << outcome.log;
  auto figures = Figures(outcome);
  EXPECT_GT(figures["of the peak before and after"], 0);
  EXPECT_EQ(figures["refused or late"], 0);
}

TEST(BenchControlTest, MeasuresAnswersThatAreRefusedAndAnswersThatBecomeDurable) {
  BenchOutcome outcome = Short("stream");
  EXPECT_EQ(outcome.code, 0) << outcome.log;
  EXPECT_GT(Figures(outcome)["answers of 16 KiB"], 0) << outcome.log;
  outcome = Short("ack");
  EXPECT_EQ(outcome.code, 0) << outcome.log;
  EXPECT_GT(Figures(outcome)["durable answers of 16 KiB"], 0) << outcome.log;
}

TEST(BenchControlTest, MeasuresMembersAtRestAndTheirReturnAfterARestart) {
  BenchOutcome outcome = Short("members");
  EXPECT_EQ(outcome.code, 0) << outcome.log;
  auto figures = Figures(outcome);
  EXPECT_EQ(figures["fewest that were alive"], 20);
  EXPECT_GT(figures["memory of the synchronizer"], 0);
  EXPECT_GT(figures["GET /metrics with 20 members"], 0);
  outcome = Short("restart");
  EXPECT_EQ(outcome.code, 0) << outcome.log;
  EXPECT_GT(Figures(outcome)["all 20 back after the kill"], 0);
}

TEST(BenchControlTest, SaysWhatItCannotMeasure) {
  BenchOutcome outcome = Bench({"telepathy"});
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.log, HasSubstr("telepathy"));
  outcome = Bench({"unary", "--callers", "0"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.result["reason"], "BAD_CASE") << outcome.log;
}

TEST(BenchControlTest, CheckFailsWhenAnAimIsNotMet) {
  // One caller cannot make fifty thousand calls a second.
  const BenchOutcome outcome = Bench({"unary", "--check", "--callers", "1", "--rounds", "1", "--round-seconds", "0.2"});
  EXPECT_EQ(outcome.code, 1) << outcome.log;
  EXPECT_EQ(outcome.result["all_met"], false);
}

}  // namespace
}  // namespace syncopate::testing
