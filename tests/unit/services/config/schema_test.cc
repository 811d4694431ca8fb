#include "services/config/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/config/field_value.h"
#include "synchronizer/transport/transport_traits.h"

namespace syncopate::config {
namespace {

TEST(ConfigSchemaTest, EveryKeyHasADocAndADefaultThatItsOwnRangeAccepts) {
  ConfigSchema schema;
  v1::RunConfig config;
  SetDefaults(schema, &config);  // ends the process if a default does not parse
  EXPECT_GT(schema.keys().size(), 70u);
  for (const ConfigKey& key : schema.keys()) EXPECT_FALSE(key.option.doc().empty()) << key.path;
  EXPECT_EQ(config.train().beta2(), 0.95);
  EXPECT_EQ(config.model().hidden_size(), 64);
  EXPECT_TRUE(config.model().learned_positions());
}

TEST(ConfigSchemaTest, EveryTransportBetweenProcessesCanBeAskedFor) {
  const ConfigSchema schema;
  for (const ConfigKey& key : schema.keys()) {
    if (key.path != "sync.transport") continue;
    EXPECT_THAT(key.option.choices(), ::testing::ElementsAreArray(synchronizer::TransportChoices()));
    return;
  }
  FAIL() << "no key sync.transport";
}

TEST(ConfigSchemaTest, EditDistanceCountsInsertionsDeletionsSubstitutionsAndSwaps) {
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("steps", "steps"), 0u);
  EXPECT_EQ(EditDistance("step", "steps"), 1u);
  EXPECT_EQ(EditDistance("stepss", "steps"), 1u);
  EXPECT_EQ(EditDistance("stebs", "steps"), 1u);
  EXPECT_EQ(EditDistance("setps", "steps"), 1u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
}

TEST(ConfigSchemaTest, FindsTheNearestKeyForSlipsOfWordAndOfSection) {
  const std::pair<const char*, const char*> cases[] = {
      {"train.learnig_rate", "train.learning_rate"},
      {"rollout.learning_rate", "train.learning_rate"},
      {"learning_rate", "train.learning_rate"},
      {"staleness.max", "staleness.max_staleness"},
      {"stalness", "staleness"},
      {"modle.hidden_size", "model.hidden_size"},
      {"run.step", "run.steps"},
      {"train.lr", "train.learning_rate"},
      {"stalness.max_staleness", "staleness.max_staleness"},
      {"max_staleness", "staleness.max_staleness"},
  };
  ConfigSchema schema;
  for (const auto& [written, nearest] : cases) EXPECT_EQ(schema.Nearest(written), nearest) << written;
}

TEST(ConfigSchemaTest, OffersNoKeyThatNobodyMeant) {
  const ConfigSchema schema;
  for (const char* written : {"algorithm", "train.lora_rank", "trainer.logger", "use_wandb", "rollout.engine_kwargs",
                              "data.shuffle", "n", "train.fsdp_config", "everything.else"}) {
    EXPECT_EQ(schema.Nearest(written), "") << written;
  }
}

TEST(ConfigSchemaTest, WhatMayBeLeftToUsHasTheDefaultThatRunsHadBefore) {
  const ConfigSchema schema;
  for (const ConfigKey& key : schema.keys()) {
    v1::RunConfig config;
    SetDefaults(schema, &config);
    if (key.option.zero_is_auto()) {
      EXPECT_TRUE(key.IsAutomatic()) << key.path;
    }
    if (!key.IsAutomatic()) continue;
    EXPECT_THAT(GetValue(key, config), ::testing::AnyOf("0", "\"\"")) << key.path;
    EXPECT_TRUE(SetValue(key, key.option.former_default(), &config)) << key.path;
  }
}

TEST(ConfigSchemaTest, SaysWhatAValueMustBe) {
  ConfigSchema schema;
  EXPECT_EQ(schema.Find("data.length")->Expected(), "an integer from 1 to 512");
  EXPECT_EQ(schema.Find("run.steps")->Expected(), "an integer of at least 1");
  EXPECT_EQ(schema.Find("train.mis_low")->Expected(), "a number from 0 to 1");
  EXPECT_EQ(schema.Find("train.learning_rate")->Expected(), "a number from 1e-12 to 1, or auto");
  EXPECT_EQ(schema.Find("run.resume")->Expected(), "true or false");
  EXPECT_EQ(schema.Find("reward.undecided")->Expected(), "one of wrong, fail");
  EXPECT_EQ(schema.Find("run.dir")->Expected(), "text");
  EXPECT_EQ(schema.Find("sync.deadline")->Expected(), "a duration above zero with a unit, such as 250ms, 10s or 5m");
  EXPECT_EQ(schema.Find("run"), nullptr);
  EXPECT_EQ(schema.Find("run.nothing"), nullptr);
}

}  // namespace
}  // namespace syncopate::config
