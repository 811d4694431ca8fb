#include "base/latency_histogram.h"

#include <gtest/gtest.h>

namespace syncopate {
namespace {

TEST(LatencyHistogramTest, HasNoQuantilesBeforeAnythingWasCounted) {
  EXPECT_EQ(LatencyHistogram().Quantile(0.99), absl::ZeroDuration());
}

TEST(LatencyHistogramTest, QuantilesAreThoseOfWhatWasCountedWithinThreePercent) {
  LatencyHistogram histogram;
  for (int i = 1; i <= 100000; ++i) histogram.Add(absl::Microseconds(i));
  EXPECT_EQ(histogram.count(), 100000);
  for (double quantile : {0.001, 0.5, 0.9, 0.99, 1.0}) {
    const double exact = quantile * 100000;
    const double found = absl::ToDoubleMicroseconds(histogram.Quantile(quantile));
    EXPECT_GE(found, exact) << quantile;
    EXPECT_LE(found, exact * 1.035) << quantile;
  }
}

TEST(LatencyHistogramTest, ShortTimesAreExactAndLongOnesStayInRange) {
  LatencyHistogram histogram;
  for (int i = 0; i < 32; ++i) histogram.Add(absl::Microseconds(i));
  EXPECT_EQ(histogram.Quantile(0.5), absl::Microseconds(15));
  EXPECT_EQ(histogram.Quantile(1), absl::Microseconds(31));
  histogram.Add(-absl::Seconds(1));  // the clock was set back
  histogram.Add(absl::InfiniteDuration());
  EXPECT_EQ(histogram.count(), 34);
  EXPECT_GT(histogram.Quantile(1), absl::Hours(1));
  LatencyHistogram one_hour;
  one_hour.Add(absl::Hours(1));
  EXPECT_LE(one_hour.Quantile(0.5), absl::Hours(1) * 1.035);
}

TEST(LatencyHistogramTest, MergingIsCountingBoth) {
  LatencyHistogram low, high;
  for (int i = 0; i < 90; ++i) low.Add(absl::Microseconds(10));
  for (int i = 0; i < 10; ++i) high.Add(absl::Milliseconds(10));
  low.Merge(high);
  EXPECT_EQ(low.count(), 100);
  EXPECT_EQ(low.Quantile(0.9), absl::Microseconds(10));
  EXPECT_GE(low.Quantile(0.91), absl::Milliseconds(10));
}

}  // namespace
}  // namespace syncopate
