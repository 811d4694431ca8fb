#include "ranks/rank_reports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace syncopate {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(RankReportsTest, IsCompleteWhenEveryRankHasReportedOnTheSubject) {
  RankReports<int> reports;
  EXPECT_FALSE(reports.AllIn("a", 2));
  reports.Add("a", 2, 20);
  reports.Add("b", 1, 11);
  EXPECT_FALSE(reports.AllIn("a", 2)) << "a report on another subject does not count";
  reports.Add("a", 1, 10);
  EXPECT_TRUE(reports.AllIn("a", 2));
  EXPECT_THAT(reports.Take("a"), ElementsAre(Pair(1, 10), Pair(2, 20)));
  EXPECT_THAT(reports.Take("b"), ElementsAre(Pair(1, 11)));
}

TEST(RankReportsTest, CountsARankOnceAndKeepsItsNewestReport) {
  RankReports<int> reports;
  reports.Add("a", 1, 10);
  reports.Add("a", 1, 12);
  EXPECT_FALSE(reports.AllIn("a", 2));
  EXPECT_THAT(reports.Take("a"), ElementsAre(Pair(1, 12)));
}

TEST(RankReportsTest, ForgetsWhatWasTaken) {
  RankReports<int> reports;
  reports.Add("a", 1, 10);
  reports.Take("a");
  EXPECT_FALSE(reports.AllIn("a", 1));
  EXPECT_THAT(reports.Take("a"), IsEmpty());
}

TEST(RankReportsTest, IsCompleteAtOnceWithoutOtherRanks) { EXPECT_TRUE(RankReports<int>().AllIn("a", 0)); }

}  // namespace
}  // namespace syncopate
