#include "rollouter/reward/reward.h"

#include <gtest/gtest.h>

namespace syncopate::rollouter {
namespace {

const std::vector<int32_t> kPrompt = {8, 1, 2, 9};
const std::vector<int32_t> kAnswer = {2, 1, 10};

float Score(const std::string& name, const std::vector<int32_t>& response) {
  const RewardRegistry registry = RewardRegistry::BuiltIn();
  return (**registry.Find(name))({kPrompt, kAnswer, response});
}

TEST(RewardTest, DenseIsTheShareOfRightPositions) {
  EXPECT_FLOAT_EQ(Score("dense", {2, 1, 10}), 1.0f);
  EXPECT_FLOAT_EQ(Score("dense", {2, 3, 10}), 2.0f / 3);
  EXPECT_FLOAT_EQ(Score("dense", {2, 10}), 1.0f / 3);  // stopped early: what is missing is wrong
  EXPECT_FLOAT_EQ(Score("dense", {2, 1, 10, 4, 4}), 1.0f);
  EXPECT_FLOAT_EQ(Score("dense", {}), 0.0f);
}

TEST(RewardTest, ExactWantsAllOfIt) {
  EXPECT_FLOAT_EQ(Score("exact", {2, 1, 10}), 1.0f);
  EXPECT_FLOAT_EQ(Score("exact", {2, 1}), 0.0f);
  EXPECT_FLOAT_EQ(Score("exact", {2, 1, 10, 4}), 0.0f);
}

TEST(RewardTest, AnUnknownNameListsTheKnownOnes) {
  const absl::Status unknown = RewardRegistry::BuiltIn().Find("denes").status();
  EXPECT_EQ(ErrorReason(unknown), "UNKNOWN_REWARD");
  EXPECT_NE(unknown.message().find("dense, exact"), absl::string_view::npos);
}

TEST(RewardTest, TakesNewNamesOnce) {
  RewardRegistry registry = RewardRegistry::BuiltIn();
  EXPECT_TRUE(
      registry.Register("length", [](const RewardInput& in) { return static_cast<float>(in.response.size()); }).ok());
  EXPECT_EQ((**registry.Find("length"))({kPrompt, kAnswer, {1, 2}}), 2.0f);
  EXPECT_EQ(ErrorReason(registry.Register("dense", nullptr)), "REWARD_EXISTS");
}

}  // namespace
}  // namespace syncopate::rollouter
