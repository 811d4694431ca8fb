#include "base/console/words.h"

#include <gtest/gtest.h>

#include <limits>

namespace syncopate {
namespace {

TEST(WordsTest, WritesNumbersAsPeopleReadThem) {
  EXPECT_EQ(Thousands(0), "0");
  EXPECT_EQ(Thousands(999), "999");
  EXPECT_EQ(Thousands(1000), "1,000");
  EXPECT_EQ(Thousands(-1234567), "-1,234,567");
  EXPECT_EQ(Thousands(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
  EXPECT_EQ(Percent(0.126), "13%");
  EXPECT_EQ(Milliseconds(0.00042), "0.42 ms");
  EXPECT_EQ(Milliseconds(0.0061), "6.1 ms");
  EXPECT_EQ(Milliseconds(1.5), "1500 ms");
  EXPECT_EQ(Clocked(7.9), "0:07");
  EXPECT_EQ(Clocked(75), "1:15");
  EXPECT_EQ(Clocked(3675), "1:01:15");
}

TEST(WordsTest, AShareOfNothingIsNothing) {
  EXPECT_EQ(Share(1, 4), 0.25);
  EXPECT_EQ(Share(1, 0), 0);
}

}  // namespace
}  // namespace syncopate
