#include "tools/report/series.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace syncopate::report {
namespace {

using nlohmann::json;

TEST(SeriesTest, GivesWhatWasAddedAsLongAsThereIsRoom) {
  Series series(8);
  series.Add(1, {{"loss", 0.5}, {"reward", 1}});
  series.Add(2, {{"loss", 0.25}});
  EXPECT_EQ(series.All(), json::parse(R"({"span":1,"from":0,"at":[1,2],
      "figures":{"loss":{"mean":[0.5,0.25]},"reward":{"mean":[1.0,null]}}})"));
}

TEST(SeriesTest, KeepsTheMeanTheSmallestAndTheLargestOfWhatItJoins) {
  Series series(4);
  for (int64_t step = 1; step <= 100; ++step)
    series.Add(step, {{"x", step == 37 ? 1000.0 : step == 38 ? -1000.0 : 1.0}});
  const json all = series.All();
  EXPECT_LE(series.size(), 4u);
  double low = 0, high = 0, sum = 0;
  const json& x = all["figures"]["x"];
  for (size_t i = 0; i < series.size(); ++i) {
    low = std::min(low, x["low"][i].get<double>());
    high = std::max(high, x["high"][i].get<double>());
    const int64_t before = i == 0 ? 0 : all["at"][i - 1].get<int64_t>();
    sum += x["mean"][i].get<double>() * static_cast<double>(all["at"][i].get<int64_t>() - before);
  }
  EXPECT_EQ(low, -1000);
  EXPECT_EQ(high, 1000);
  EXPECT_NEAR(sum, 98, 1e-3);
  EXPECT_EQ(all["at"].back(), 100);
}

TEST(SeriesTest, ManyValuesOfOnePlaceAreOnePoint) {
  Series series(4);
  for (const double value : {1.0, 2.0, 6.0}) series.Add(5, {{"total", value}});
  EXPECT_EQ(series.All()["figures"]["total"], json::parse(R"({"mean":[3.0],"low":[1.0],"high":[6.0]})"));
}

TEST(SeriesTest, LeavesOutWhatIsNotFinite) {
  Series series;
  series.Add(1, {{"x", std::nan("")}, {"y", std::numeric_limits<double>::infinity()}});
  series.Add(2, {{"x", 1}});
  EXPECT_EQ(series.All()["figures"], json::parse(R"({"x":{"mean":[null,1.0]}})"));
}

TEST(SeriesTest, ForgetsWhatWasRolledBack) {
  Series series;
  for (int64_t step = 1; step <= 6; ++step) series.Add(step, {{"x", 1}});
  series.DropFrom(4);
  series.Add(4, {{"x", 2}});
  EXPECT_EQ(series.All()["at"], json::parse("[1,2,3,4]"));
}

// A client that polls several times ends with the data that a client gets in one poll.
TEST(SeriesTest, WhatIsNewCompletesWhatOneHas) {
  Series series(8);
  int64_t span = 0;
  json at = json::array(), mean = json::array();
  for (int64_t step = 1; step <= 200; ++step) {
    series.Add(step, {{"x", static_cast<double>(step % 7)}});
    if (step % 3 != 0) continue;
    const json fresh = series.Since(span, at.size());
    const auto from = fresh["from"].get<int64_t>();
    at.erase(at.begin() + from, at.end());
    mean.erase(mean.begin() + from, mean.end());
    for (const json& one : fresh["at"]) at.push_back(one);
    for (const json& one : fresh["figures"]["x"]["mean"]) mean.push_back(one);
    span = fresh["span"];
    const json all = series.All();
    ASSERT_EQ(at, all["at"]) << step;
    ASSERT_EQ(mean, all["figures"]["x"]["mean"]) << step;
  }
}

TEST(SeriesTest, AClientThatHasMoreThanThereIsGetsAll) {
  Series series;
  series.Add(1, {{"x", 1}});
  EXPECT_EQ(series.Since(1, 9)["from"], 0);
  EXPECT_EQ(series.Since(1, 9)["at"].size(), 1u);
}

}  // namespace
}  // namespace syncopate::report
