#include "bench/sync/bench_model.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>

#include "base/half.h"
#include "bench/sync/bench_weights.h"
#include "tests/support/status_matchers.h"

namespace syncopate::bench {
namespace {

using ::syncopate::testing::HasReason;

TEST(BenchModelTest, EveryModelHasAManifest) {
  for (const std::string& name : model::PresetNames()) {
    auto manifest = BenchManifest(name);
    ASSERT_TRUE(manifest.ok()) << name;
    EXPECT_GT(manifest->weight_bytes(), 0);
  }
  EXPECT_GT(BenchManifest("qwen2.5-7b")->weight_bytes(), 15'200'000'000);
  EXPECT_THAT(BenchManifest("gpt-9"), HasReason("UNKNOWN_MODEL"));
}

TEST(BenchModelTest, WeightsAreFiniteAndNeverZero) {
  std::set<uint32_t> seen;
  for (uint64_t element = 0; element < 20000; ++element) {
    const uint32_t bits = BenchWeightBits(3, element, 5);
    const float value = std::bit_cast<float>(bits);
    ASSERT_TRUE(std::isfinite(value));
    ASSERT_GT(std::abs(value), 0.001);
    seen.insert(bits);
  }
  EXPECT_GT(seen.size(), 19900u);  // no pattern
}

TEST(BenchModelTest, SomeWeightsChangeWithTheStepAndMostDoNot) {
  int changed = 0;
  constexpr int kElements = 16000;
  for (uint64_t element = 0; element < kElements; ++element) {
    changed += BenchWeightBits(0, element, 1) != BenchWeightBits(0, element, 2) ? 1 : 0;
  }
  EXPECT_NEAR(changed, kElements / 16, 200);
}

TEST(BenchModelTest, TensorsDiffer) {
  int same = 0;
  for (uint64_t element = 0; element < 1000; ++element) {
    same += BenchWeightBits(0, element, 1) == BenchWeightBits(1, element, 1) ? 1 : 0;
  }
  EXPECT_LT(same, 5);
}

TEST(BenchModelTest, RoundsToBFloat16AsThePackingDoes) {
  for (uint64_t element = 0; element < 20000; ++element) {
    const float value = std::bit_cast<float>(BenchWeightBits(7, element, 9));
    ASSERT_EQ(BenchWeightBFloat16(7, element, 9), RoundToBFloat16(value));
  }
}

}  // namespace
}  // namespace syncopate::bench
