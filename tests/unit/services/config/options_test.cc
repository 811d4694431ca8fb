#include <gtest/gtest.h>

#include "services/config/model_options.h"
#include "services/config/rules.h"
#include "services/config/run_config.h"
#include "services/config/run_model.h"
#include "services/config/trainer_options.h"

namespace syncopate::config {
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
    EXPECT_EQ(FindRunModel(config)->shape.vocab_size, (*task)->vocab_size()) << name;
  }
}

TEST(OptionsTest, DefaultsAreAModelThatCanBe) {
  const v1::RunConfig config = Config({});
  EXPECT_TRUE(FindRunModel(config)->shape.Validate().ok());
  EXPECT_TRUE(PolicyTrainerOptionsOf(config, FindRunModel(config)->shape).step.Validate().ok());
  EXPECT_TRUE(PolicyTrainerOptionsOf(config, FindRunModel(config)->shape).optimizer.Validate().ok());
}

TEST(OptionsTest, WeightsTravelInTheDtypeOfTheRollouters) {
  EXPECT_EQ(WireDTypeOf(Config({})), DType::kFloat32);
  EXPECT_EQ(WireDTypeOf(Config({"rollout.device=auto"})), DType::kFloat32);  // the same whatever a daemon's machine has
  EXPECT_EQ(WireDTypeOf(Config({"rollout.device=cuda:1"})), DType::kBFloat16);
  EXPECT_EQ(WireDTypeOf(Config({"train.device=cuda"})), DType::kFloat32);
  EXPECT_EQ(WireDTypeOf(Config({"rollout.device=cuda", "model.dtype=float32"})), DType::kFloat32);
  EXPECT_EQ(WireDTypeOf(Config({"model.dtype=bfloat16"})), DType::kBFloat16);
  EXPECT_EQ(EngineOptionsOf(Config({"model.dtype=bfloat16"}), {}).dtype, DType::kBFloat16);
}

TEST(OptionsTest, RolloutersTakeTheGpusThatTheTrainerLeaves) {
  const v1::RunConfig config = Config({"train.device=cuda", "rollout.device=cuda", "rollouter.index=2"});
  const model::Hardware four{.built_with_cuda = true, .gpus = 4}, one{.built_with_cuda = true, .gpus = 1};
  EXPECT_EQ(*model::ChooseDevice(TrainDeviceRequest(config), four), "cuda:0");
  EXPECT_EQ(*model::ChooseDevice(RolloutDeviceRequest(config), four), "cuda:3");
  EXPECT_EQ(*model::ChooseDevice(RolloutDeviceRequest(config), one), "cuda:0");
}

TEST(OptionsTest, SaysWhatADeviceThatWasChosenHereCannotDo) {
  const v1::RunConfig ipc = Config({"train.device=auto", "rollout.device=auto", "sync.transport=ipc"});
  EXPECT_TRUE(CheckTrainDevice(ipc, "cuda:0").ok());
  EXPECT_TRUE(CheckRolloutDevice(ipc, "cuda:1").ok());
  EXPECT_EQ(CheckTrainDevice(ipc, "cpu").message(),
            "sync.transport is ipc, but train.device auto is cpu here; set sync.transport=auto, or name the device");
  EXPECT_EQ(ErrorReason(CheckRolloutDevice(ipc, "cpu")), "BAD_CONFIG");
  const v1::RunConfig remap = Config({"rollout.device=auto", "sync.install=remap"});
  EXPECT_TRUE(CheckRolloutDevice(remap, "cuda:0").ok());
  EXPECT_EQ(ErrorReason(CheckRolloutDevice(remap, "cpu")), "BAD_CONFIG");
  const v1::RunConfig swap = Config({"rollout.device=auto", "sync.install=swap"});
  EXPECT_TRUE(CheckRolloutDevice(swap, "cpu").ok());
  EXPECT_EQ(ErrorReason(CheckRolloutDevice(swap, "cuda:0")), "BAD_CONFIG");
  EXPECT_TRUE(CheckRolloutDevice(Config({}), "cpu").ok());
}

TEST(OptionsTest, CorrectionAndSamplingFollowTheConfiguration) {
  EXPECT_EQ(PolicyTrainerOptionsOf(Config({"train.correction=tis"}), {}).step.loss.correction,
            trainer::Correction::kTis);
  EXPECT_EQ(PolicyTrainerOptionsOf(Config({"train.correction=none"}), {}).step.loss.correction,
            trainer::Correction::kNone);
  const v1::RunConfig config = Config({"rollout.temperature=0.5"});
  auto task = trainer::MakeTask(TaskOptionsOf(config)).value();
  EXPECT_EQ(SamplingOf(config, *task).temperature, 0.5f);
  EXPECT_EQ(SamplingOf(config, *task).stop_token_ids, task->stop_token_ids());
  EXPECT_EQ(EvaluationSamplingOf(config, *task).temperature, 0.0f);
}

}  // namespace
}  // namespace syncopate::config
