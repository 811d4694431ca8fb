#include "bench/sync/bench_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/sync/run_words.h"
#include "services/config/run_config.h"
#include "tests/support/status_matchers.h"

namespace syncopate::bench {
namespace {

using ::syncopate::testing::HasReason;
using ::testing::Contains;

TEST(BenchModelTest, EveryModelHasAManifest) {
  for (const std::string& name : model::PresetNames()) {
    auto manifest = BenchManifest(name);
    ASSERT_TRUE(manifest.ok()) << name;
    EXPECT_GT(manifest->weight_bytes(), 0);
  }
  EXPECT_GT(BenchManifest("qwen2.5-7b")->weight_bytes(), 15'200'000'000);
  EXPECT_THAT(BenchManifest("gpt-9"), HasReason("UNKNOWN_MODEL"));
}

TEST(BenchModelTest, AShapeIsOneThatTheConfigurationCanSay) {
  const absl::StatusOr<model::ModelConfig> shape = BenchShape("qwen2.5-7b", 4);
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->num_hidden_layers, 4);
  EXPECT_FALSE(shape->qkv_bias);
  EXPECT_THAT(ShapeWords(*shape),
              ::testing::AllOf(Contains("model.num_hidden_layers=4"), Contains("model.num_key_value_heads=4"),
                               Contains("model.rope_theta=1e+06")));
  EXPECT_EQ(BenchShape("qwen2.5-7b", 0)->num_hidden_layers, 28);
  EXPECT_THAT(BenchShape("qwen2.5-7b", 29), HasReason("BAD_CASE"));
}

// For each model and device, every word is a key of the configuration, and the words make a valid configuration.
TEST(BenchModelTest, DaemonsTakeTheWordsOfEveryModel) {
  for (const std::string& name : model::PresetNames()) {
    SyncCase sync_case;
    sync_case.model = name;
    for (const bool cpu : {false, true}) {
      sync_case.cpu = cpu;
      const config::ParsedRunConfig parsed =
          config::ParseRunConfig("run: {name: bench}", "the test", BenchRunWords(sync_case, *BenchShape(name, 0)));
      for (const config::ConfigProblem& problem : parsed.problems) ADD_FAILURE() << name << ": " << problem.ToString();
    }
  }
}

}  // namespace
}  // namespace syncopate::bench
