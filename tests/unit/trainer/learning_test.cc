#include <gtest/gtest.h>

#include <algorithm>

#include "services/config/run_config.h"
#include "services/twin/synchronous_loop.h"

namespace syncopate::services {
namespace {

v1::RunConfig ReverseConfig(int seed) {
  ParsedRunConfig parsed = ParseRunConfig("", "defaults", {absl::StrCat("run.seed=", seed)});
  EXPECT_TRUE(parsed.problems.empty());
  return parsed.config;
}

class LearningTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Seeds, LearningTest, ::testing::Values(0, 1, 2));

TEST_P(LearningTest, ReverseIsLearnedFromNothingWithinAHundredSteps) {
  auto loop = SynchronousLoop::Create(ReverseConfig(GetParam()));
  ASSERT_TRUE(loop.ok()) << loop.status();
  double best = (*loop)->EvaluateExact().value();
  EXPECT_LT(best, 0.1);  // it starts from nothing
  while ((*loop)->step() < 100 && best < 0.95) {
    ASSERT_TRUE((*loop)->Step().ok());
    if ((*loop)->step() % 10 == 0) best = std::max(best, (*loop)->EvaluateExact().value());
  }
  EXPECT_GE(best, 0.95);
}

TEST(SynchronousLoopTest, TwoRunsGiveTheSameBitsAndAnotherSeedDoesNot) {
  auto first = SynchronousLoop::Create(ReverseConfig(0)).value();
  auto second = SynchronousLoop::Create(ReverseConfig(0)).value();
  auto other = SynchronousLoop::Create(ReverseConfig(1)).value();
  for (int i = 0; i < 3; ++i) {
    const uint64_t digest = first->Step().value().weights_digest;
    EXPECT_EQ(second->Step().value().weights_digest, digest);
    EXPECT_NE(other->Step().value().weights_digest, digest);
  }
}

}  // namespace
}  // namespace syncopate::services
