#include "services/endpoint/request_counts.h"

#include <gtest/gtest.h>

#include <numeric>

namespace syncopate::endpoint {
namespace {

TEST(RequestCountsTest, AnHttpCodeIsAResult) {
  EXPECT_EQ(ResultForCode(200), RequestResult::kOk);
  EXPECT_EQ(ResultForCode(400), RequestResult::kRefused);
  EXPECT_EQ(ResultForCode(404), RequestResult::kRefused);
  EXPECT_EQ(ResultForCode(429), RequestResult::kBusy);
  EXPECT_EQ(ResultForCode(500), RequestResult::kFailed);
  EXPECT_EQ(ResultForCode(503), RequestResult::kFailed);
}

TEST(RequestCountsTest, AFirstTokenIsCountedBetweenTwoBounds) {
  RequestCounts counts;
  for (const int ms : {0, 1, 2, 40, 60'000}) counts.ObserveFirstToken(absl::Milliseconds(ms));
  const RequestCounts::Figures figures = counts.GetFigures();
  EXPECT_EQ(figures.first_token[0], 2) << "a bound belongs to what is below";
  EXPECT_EQ(figures.first_token[1], 1);
  EXPECT_EQ(figures.first_token[5], 1);
  EXPECT_EQ(figures.first_token.back(), 1);
  EXPECT_EQ(std::accumulate(figures.first_token.begin(), figures.first_token.end(), int64_t{0}), 5);
  EXPECT_DOUBLE_EQ(figures.first_token_seconds, 60.043);
}

}  // namespace
}  // namespace syncopate::endpoint
