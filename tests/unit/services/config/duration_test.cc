#include "services/config/duration.h"

#include <gtest/gtest.h>

#include "base/status.h"

namespace syncopate::config {
namespace {

TEST(DurationTest, ReadsNumbersWithUnits) {
  EXPECT_EQ(*ParseDuration("250ms"), absl::Milliseconds(250));
  EXPECT_EQ(*ParseDuration("10s"), absl::Seconds(10));
  EXPECT_EQ(*ParseDuration("5m"), absl::Minutes(5));
  EXPECT_EQ(*ParseDuration("1h30m"), absl::Minutes(90));
  EXPECT_EQ(*ParseDuration("0.5s"), absl::Milliseconds(500));
}

TEST(DurationTest, RefusesWhatHasNoUnitOrIsNotAboveZero) {
  for (const char* text : {"", "10", "0", "0s", "-1s", "inf", "-inf", "ten seconds", "10 s", "10x", "s", "10s20"}) {
    auto duration = ParseDuration(text);
    ASSERT_FALSE(duration.ok()) << text;
    EXPECT_EQ(ErrorReason(duration.status()), "BAD_DURATION") << text;
  }
}

TEST(DurationTest, GivesTheDefaultForAnEmptyOne) {
  EXPECT_EQ(CheckedDuration(""), absl::InfiniteDuration());
  EXPECT_EQ(CheckedDuration("", absl::Seconds(3)), absl::Seconds(3));
  EXPECT_EQ(CheckedDuration("2s", absl::Seconds(3)), absl::Seconds(2));
}

}  // namespace
}  // namespace syncopate::config
