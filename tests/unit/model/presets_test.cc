#include "model/presets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/manifest.h"
#include "tests/support/status_matchers.h"

namespace syncopate::model {
namespace {

using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::testing::HasSubstr;

int64_t CountParameters(const std::string& name) {
  int64_t sum = 0;
  for (const TensorSpec& spec : ParameterSpecs(FindPreset(name).value(), DType::kBFloat16)) sum += spec.NumElements();
  return sum;
}

TEST(PresetsTest, HaveThePublishedNumbersOfParameters) {
  EXPECT_EQ(CountParameters("qwen2.5-0.5b"), 494032768);
  EXPECT_EQ(CountParameters("qwen2.5-1.5b"), 1543714304);
  EXPECT_EQ(CountParameters("qwen2.5-3b"), 3085938688);
  EXPECT_EQ(CountParameters("qwen2.5-7b"), 7615616512);
  EXPECT_EQ(CountParameters("qwen2.5-14b"), 14770033664);
  EXPECT_EQ(CountParameters("qwen2.5-32b"), 32763876352);
  EXPECT_EQ(CountParameters("qwen3-0.6b"), 596049920);
  EXPECT_EQ(CountParameters("qwen3-1.7b"), 1720574976);
  EXPECT_EQ(CountParameters("qwen3-4b"), 4022468096);
  EXPECT_EQ(CountParameters("qwen3-8b"), 8190735360);
  EXPECT_EQ(CountParameters("qwen3-32b"), 32762123264);
  EXPECT_EQ(CountParameters("llama-3.2-1b"), 1235814400);
  EXPECT_EQ(CountParameters("llama-3.2-3b"), 3212749824);
  EXPECT_EQ(CountParameters("llama-3.1-8b"), 8030261248);
  EXPECT_EQ(CountParameters("mistral-7b-v0.3"), 7248023552);
}

TEST(PresetsTest, TheModelForLettersHasPositionsAndTwentyFiveMillionParameters) {
  EXPECT_TRUE(FindPreset("letters-25m")->learned_positions);
  EXPECT_EQ(CountParameters("letters-25m") / 1000000, 25);
}

TEST(PresetsTest, AllCanBe) {
  for (const std::string& name : PresetNames()) EXPECT_TRUE(FindPreset(name)->Validate().ok()) << name;
}

TEST(PresetsTest, TheSevenBillionAreFifteenGigabytesInBFloat16) {
  const Manifest manifest = MakeManifest(*FindPreset("qwen2.5-7b"), DType::kBFloat16).value();
  EXPECT_EQ(manifest.weight_bytes(), 15231233024);
  EXPECT_LT(manifest.arena_bytes() - manifest.weight_bytes(), 100000);
}

TEST(PresetsTest, AnUnknownNameListsTheKnownOnes) {
  const auto unknown = FindPreset("qwen9-1t");
  EXPECT_THAT(unknown, HasReason("UNKNOWN_MODEL"));
  EXPECT_THAT(unknown, HasMessage(HasSubstr("qwen3-8b")));
}

}  // namespace
}  // namespace syncopate::model
