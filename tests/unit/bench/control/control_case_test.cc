#include "bench/control/control_case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>

#include "bench/control/control_result.h"
#include "bench/control/data_peer_options.h"
#include "bench/process/process_usage.h"
#include "tests/support/status_matchers.h"

namespace syncopate::bench {
namespace {

using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::HasSubstr;
using ::testing::Not;

ControlCase Good() {
  ControlCase good;
  good.parts = ControlParts();
  return good;
}

TEST(ControlCaseTest, RefusesWhatCannotBeMeasured) {
  EXPECT_THAT(Good().Validate(), IsOk());
  const std::function<void(ControlCase&)> spoils[] = {
      [](ControlCase& bad) { bad.parts = {}; },          [](ControlCase& bad) { bad.members = 0; },
      [](ControlCase& bad) { bad.rounds = 0; },          [](ControlCase& bad) { bad.round = absl::ZeroDuration(); },
      [](ControlCase& bad) { bad.message_bytes = 100; }, [](ControlCase& bad) { bad.tls.cert = "alone.crt"; },
  };
  for (const auto& spoil : spoils) {
    ControlCase bad = Good();
    spoil(bad);
    EXPECT_THAT(bad.Validate(), HasReason("BAD_CASE"));
  }
  ControlCase unknown = Good();
  unknown.parts = {"unary", "telepathy"};
  EXPECT_THAT(unknown.Validate(), HasMessage(HasSubstr("'telepathy'")));
  EXPECT_THAT(unknown.Validate(), HasMessage(HasSubstr("restart")));
}

TEST(ControlResultTest, AnAimIsMetByTheMedianAndAFigureWithoutOneAlways) {
  ControlResult result;
  result.figures.push_back({.part = "unary", .name = "rate", .unit = "/s", .value = ComputeSpread({1, 60000, 70000})});
  EXPECT_TRUE(result.AllMet());
  EXPECT_FALSE(result.figures[0].has_aim());
  result.figures[0].at_least = 50000;
  EXPECT_TRUE(result.AllMet());
  result.figures[0].at_least = 65000;
  EXPECT_FALSE(result.AllMet());
  EXPECT_THAT(ToText(result), HasSubstr("NO"));
  const nlohmann::json json = ToJson(result);
  EXPECT_EQ(json["figures"][0]["met"], false);
  EXPECT_EQ(json["figures"][0]["at_least"], 65000);
  EXPECT_FALSE(json["figures"][0].contains("at_most"));
  EXPECT_EQ(json["all_met"], false);
}

TEST(DataPeerOptionsTest, SurviveTheWayToAnotherProcess) {
  DataPeerOptions options{.folder = "/tmp/a \"b\"", .batch_groups = 7, .samples = 3, .tls = {"c", "k", "a"}};
  auto parsed = ParseDataPeerOptions(ToJsonText(options));
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(parsed->folder, options.folder);
  EXPECT_EQ(parsed->listen, options.listen);
  EXPECT_EQ(parsed->batch_groups, 7);
  EXPECT_EQ(parsed->samples, 3);
  EXPECT_EQ(parsed->tls.ca, "a");
  for (const char* bad : {"", "{}", "[]", R"({"folder": "x"})"}) EXPECT_THAT(ParseDataPeerOptions(bad), Not(IsOk()));
}

TEST(ProcessUsageTest, TellsWhatAProcessUsesAndThatOneIsGone) {
  auto own = ReadProcessUsage(::getpid());
  ASSERT_THAT(own, IsOk());
  EXPECT_GE(own->cpu_seconds, 0);
  EXPECT_GT(own->resident_bytes, 1 << 20);
  EXPECT_GE(own->threads, 1);
  EXPECT_GE(own->descriptors, 3);
  EXPECT_THAT(ReadProcessUsage(-1), HasReason("PEER_GONE"));
}

}  // namespace
}  // namespace syncopate::bench
