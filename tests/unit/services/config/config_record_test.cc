#include "services/config/config_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "services/config/run_config.h"
#include "services/config/schema.h"

namespace syncopate::config {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

v1::RunConfig ConfigWith(const std::vector<std::string>& overrides) {
  return ParseRunConfig("", "f", overrides).config;
}

class ConfigRecordTest : public ::testing::Test {
 protected:
  ConfigRecordTest() : dir_(::testing::TempDir() + "/config_record") { std::filesystem::remove_all(dir_); }
  void Begin(const std::vector<std::string>& overrides) const {
    ASSERT_TRUE(WriteConfigRecord(FileSystem::Real(), dir_, ConfigWith(overrides), "the-run").ok());
  }
  // Why a resume is refused, as "REASON: message"; "" if it is not refused.
  std::string Refusal(const std::vector<std::string>& overrides) const {
    const absl::Status status = Resume(overrides).status();
    return status.ok() ? "" : absl::StrCat(ErrorReason(status), ": ", std::string(status.message()));
  }
  absl::StatusOr<std::vector<ConfigDifference>> Resume(const std::vector<std::string>& overrides) const {
    return CheckResume(FileSystem::Real(), dir_, ConfigWith(overrides));
  }
  std::string RecordPath() const { return dir_ + "/state/trainer/config.json"; }

  const std::string dir_;
};

TEST_F(ConfigRecordTest, WhereNoRunHasBegunAnythingGoes) {
  auto changed = Resume({"run.seed=7"});
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_THAT(*changed, IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(dir_)) << "CheckResume changes nothing";
}

TEST_F(ConfigRecordTest, TheSameConfigurationHasNotChanged) {
  Begin({"run.seed=7", "rollout.temperature=0.9"});
  auto changed = Resume({"run.resume=true", "run.dir=runs/x", "run.seed=7", "rollout.temperature=0.9"});
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_THAT(*changed, ElementsAre(ConfigDifference{"run.dir", "\"\"", "\"runs/x\""}));
}

TEST_F(ConfigRecordTest, WhatMayChangeIsToldWithBothValues) {
  Begin({});
  auto changed = Resume({"train.learning_rate=0.5", "run.steps=7"});
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_THAT(*changed, ElementsAre(ConfigDifference{"run.steps", "100", "7"},
                                    ConfigDifference{"train.learning_rate", "0.002", "0.5"}));
}

TEST_F(ConfigRecordTest, EveryFixedKeyThatHasChangedIsNamedWithBothValues) {
  Begin({});
  EXPECT_THAT(
      Refusal({"model.hidden_size=128", "data.task=sort", "train.learning_rate=0.5"}),
      AllOf(StartsWith("FIXED_KEY: "), HasSubstr(dir_), HasSubstr("\n  model.hidden_size = 128: the run has 64\n"),
            HasSubstr("\n  data.task = \"sort\": the run has \"reverse\"\n"), Not(HasSubstr("learning_rate"))));
}

TEST_F(ConfigRecordTest, TheRunKeepsTheIdThatTheSynchronizerGaveIt) {
  Begin({});
  EXPECT_EQ(Refusal({}), "");
  EXPECT_EQ(Refusal({"run.id=the-run"}), "");
  EXPECT_THAT(Refusal({"run.id=another"}), StartsWith("FIXED_KEY"));
}

TEST_F(ConfigRecordTest, TheRunKeepsTheDigestOfTheCodeThatItsWorkerHad) {
  Begin({"environment.digest=d1"});
  EXPECT_EQ(Refusal({}), "") << "the worker reports the digest later";
  EXPECT_EQ(Refusal({"environment.digest=d1"}), "");
  EXPECT_THAT(Refusal({"environment.digest=d2"}), StartsWith("FIXED_KEY"));
}

TEST_F(ConfigRecordTest, AnotherRewardIsRefusedUnlessItIsMeant) {
  Begin({"environment.digest=d1", "reward.name=exact"});
  const std::vector<std::string> another = {"environment.digest=d2", "reward.name=dense"};
  EXPECT_THAT(Refusal(another), AllOf(StartsWith("FIXED_KEY"), HasSubstr("--accept-reward-change")));
  const auto changed = CheckResume(FileSystem::Real(), dir_, ConfigWith(another), /*accept_reward_change=*/true);
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_THAT(*changed, ::testing::UnorderedElementsAre(ConfigDifference{"environment.digest", "\"d1\"", "\"d2\""},
                                                        ConfigDifference{"reward.name", "\"exact\"", "\"dense\""}));
  EXPECT_TRUE(IsRewardKey("environment.digest"));
  EXPECT_FALSE(IsRewardKey("reward.timeout"));
  EXPECT_TRUE(IsRewardKey("reward.judge_model"));
  EXPECT_FALSE(IsRewardKey("reward.judge_tokens"));

  const std::vector<std::string> more = {"reward.name=dense", "model.hidden_size=128"};
  EXPECT_THAT(Refusal(more), Not(HasSubstr("--accept-reward-change"))) << "the flag would not help";
  const auto refused = CheckResume(FileSystem::Real(), dir_, ConfigWith(more), /*accept_reward_change=*/true);
  EXPECT_THAT(refused.status().ToString(), AllOf(HasSubstr("model.hidden_size"), Not(HasSubstr("reward.name"))));
}

TEST_F(ConfigRecordTest, AKeyThatARecordDoesNotHoldWasAsItsDefaultIs) {
  Begin({});
  std::ofstream(RecordPath()) << R"({"run.seed": "3", "key.of.another.version": "1"})";
  auto changed = Resume({"run.seed=3", "run.steps=7"});
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_THAT(*changed, ElementsAre(ConfigDifference{"run.steps", "100", "7"}));
  EXPECT_THAT(Refusal({"run.seed=3", "eval.seed=1"}), StartsWith("FIXED_KEY"));
}

TEST_F(ConfigRecordTest, TheSameNumberWrittenInAnotherWayHasNotChanged) {
  Begin({});
  std::ofstream(RecordPath()) << R"({"model.rms_norm_eps": "1e-06", "train.clip_low": "2e-1"})";
  auto changed = Resume({});
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_THAT(*changed, IsEmpty()) << changed->front().key;
}

TEST_F(ConfigRecordTest, AKeyThatIsLeftOpenNowWasAsItsDefaultWasThen) {
  Begin({});
  std::ofstream(RecordPath()) << "{}";
  auto changed = Resume({"train.learning_rate=0.5", "rollout.device=cuda"});
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_THAT(*changed, ElementsAre(ConfigDifference{"rollout.device", "\"cpu\"", "\"cuda\""},
                                    ConfigDifference{"train.learning_rate", "0.002", "0.5"}));
}

TEST_F(ConfigRecordTest, ADamagedRecordIsNotTakenForNone) {
  Begin({});
  for (const char* text : {"", "{\"run.seed\":", "[]"}) {
    std::ofstream(RecordPath()) << text;
    EXPECT_THAT(Refusal({}), AllOf(StartsWith("BAD_RECORD: "), HasSubstr(RecordPath()))) << text;
  }
}

// The bits, the prompts, the rewards and the log of a run depend on these keys.
TEST(FixedKeysTest, AreThoseThatARunCannotChange) {
  const ConfigSchema schema;
  for (const char* key : {"run.seed", "run.id", "data.task", "data.length", "data.alphabet", "data.batch_groups",
                          "rollout.samples", "rollout.temperature", "reward.name", "eval.seed", "eval.prompts",
                          "train.objective", "train.sft_steps", "data.response_field"}) {
    EXPECT_TRUE(schema.Find(key)->option.fixed()) << key;
  }
  for (const ConfigKey& key : schema.keys()) {
    // A resumed run reads its model from its own directory, whatever model.path says then.
    const bool model = key.section->name() == "model" && key.path != "model.dtype" && key.path != "model.path" &&
                       key.path != "model.context_length" && key.path != "model.tool_format";
    if (model) {
      EXPECT_TRUE(key.option.fixed()) << key.path;
    }
    const bool supervised = key.path == "train.objective" || key.path == "train.sft_steps";
    const bool free =
        (key.section->name() == "train" && !supervised) || key.path == "model.dtype" || key.path == "run.steps";
    if (free) {
      EXPECT_FALSE(key.option.fixed()) << key.path;
    }
  }
  EXPECT_EQ(schema.Find("data.task")->Doc(),
            "built-in task that makes prompts and answers; guess is played with environment.name; fixed for the life "
            "of a run");
  EXPECT_EQ(schema.Find("run.steps")->Doc(), "training steps; one without signal makes no update");
}

}  // namespace
}  // namespace syncopate::config
