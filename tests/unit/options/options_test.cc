#include <gtest/gtest.h>

#include "services/config/rules.h"
#include "services/config/run_config.h"
#include "services/options/model_options.h"
#include "services/options/trainer_options.h"

namespace syncopate::services {
namespace {

v1::RunConfig Config(const std::vector<std::string>& overrides) {
  ParsedRunConfig parsed = ParseRunConfig("", "defaults", overrides);
  EXPECT_TRUE(parsed.problems.empty());
  return parsed.config;
}

TEST(OptionsTest, TheConfigurationKnowsTheShapeOfEveryTask) {
  for (const std::string& name : trainer::TaskNames()) {
    const v1::RunConfig config = Config({"data.task=" + name, "data.length=3", "data.alphabet=5",
                                         "model.max_position_embeddings=64", "rollout.max_new_tokens=8"});
    auto task = trainer::MakeTask(TaskOptionsOf(config));
    ASSERT_TRUE(task.ok()) << task.status();
    const TaskShape shape = ShapeOf(config.data());
    EXPECT_EQ(shape.vocabulary, (*task)->vocab_size()) << name;
    EXPECT_EQ(shape.prompt_tokens, (*task)->max_prompt_tokens()) << name;
    EXPECT_EQ(shape.answer_tokens, (*task)->max_answer_tokens()) << name;
    EXPECT_EQ(ModelConfigOf(config).vocab_size, (*task)->vocab_size()) << name;
  }
}

TEST(OptionsTest, DefaultsAreAModelThatCanBe) {
  const v1::RunConfig config = Config({});
  EXPECT_TRUE(ModelConfigOf(config).Validate().ok());
  EXPECT_TRUE(PolicyTrainerOptionsOf(config).step.Validate().ok());
  EXPECT_TRUE(PolicyTrainerOptionsOf(config).optimizer.Validate().ok());
}

TEST(OptionsTest, CorrectionAndSamplingFollowTheConfiguration) {
  EXPECT_EQ(PolicyTrainerOptionsOf(Config({"train.correction=tis"})).step.loss.correction, trainer::Correction::kTis);
  EXPECT_EQ(PolicyTrainerOptionsOf(Config({"train.correction=none"})).step.loss.correction, trainer::Correction::kNone);
  const v1::RunConfig config = Config({"rollout.temperature=0.5"});
  auto task = trainer::MakeTask(TaskOptionsOf(config)).value();
  EXPECT_EQ(SamplingOf(config, *task).temperature, 0.5f);
  EXPECT_EQ(SamplingOf(config, *task).stop_token_ids, task->stop_token_ids());
  EXPECT_EQ(EvaluationSamplingOf(config, *task).temperature, 0.0f);
}

}  // namespace
}  // namespace syncopate::services
