#include "synchronizer/plan/model_shapes.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/synchronizer/plan/plan_fixtures.h"

namespace syncopate::synchronizer {
namespace {

int64_t ParametersOf(const std::string& name) {
  const std::vector<TensorSpec> tensors = ModelShapes(name).value();
  int64_t sum = 0;
  for (const TensorSpec& spec : tensors) sum += spec.NumElements();
  return sum;
}

TEST(ModelShapesTest, HavePublishedNumbersOfParameters) {
  EXPECT_EQ(ParametersOf("qwen2.5-0.5b"), 494032768);
  EXPECT_EQ(ParametersOf("qwen2.5-1.5b"), 1543714304);
  EXPECT_EQ(ParametersOf("qwen2.5-3b"), 3085938688);
  EXPECT_EQ(ParametersOf("qwen2.5-7b"), 7615616512);
  EXPECT_EQ(ParametersOf("qwen2.5-14b"), 14770033664);
  EXPECT_EQ(ParametersOf("qwen2.5-32b"), 32763876352);
  EXPECT_EQ(ParametersOf("qwen3-0.6b"), 596049920);
  EXPECT_EQ(ParametersOf("qwen3-1.7b"), 1720574976);
  EXPECT_EQ(ParametersOf("qwen3-4b"), 4022468096);
  EXPECT_EQ(ParametersOf("qwen3-8b"), 8190735360);
  EXPECT_EQ(ParametersOf("qwen3-32b"), 32762123264);
}

TEST(ModelShapesTest, TheSevenBillionAreFifteenGigabytesInBFloat16) {
  Manifest manifest = ManifestOf(*ModelShapes("qwen2.5-7b"), Manifest::kDefaultBucketBytes);
  EXPECT_EQ(manifest.weight_bytes(), 15231233024);
  EXPECT_LT(manifest.arena_bytes() - manifest.weight_bytes(), 100000);
}

TEST(ModelShapesTest, AnUnknownNameListsTheKnownOnes) {
  absl::Status status = ModelShapes("qwen9-1t").status();
  EXPECT_THAT(status, HasReason("UNKNOWN_MODEL"));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("qwen3-8b"));
}

}  // namespace
}  // namespace syncopate::synchronizer
