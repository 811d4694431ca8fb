#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "services/config/loss_options.h"
#include "services/config/model_options.h"
#include "services/config/rules.h"
#include "services/config/run_config.h"
#include "services/config/run_model.h"
#include "services/config/schema.h"
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
    const bool plays = name == "guess";
    const v1::RunConfig config =
        Config({"data.task=" + name, "data.length=3", "data.alphabet=5", "model.max_position_embeddings=64",
                "rollout.max_new_tokens=8", plays ? "environment.name=guess" : "environment.name=",
                plays ? "rollout.max_total_tokens=20" : "rollout.max_total_tokens=0"});
    auto task = trainer::MakeTask(MakeTaskOptions(config));
    ASSERT_TRUE(task.ok()) << task.status();
    const TaskShape shape = GetShape(config.data());
    EXPECT_EQ(shape.vocabulary, (*task)->vocab_size()) << name;
    EXPECT_EQ(shape.prompt_tokens, (*task)->max_prompt_tokens()) << name;
    EXPECT_EQ(shape.answer_tokens, (*task)->max_answer_tokens()) << name;
    EXPECT_EQ(FindRunModel(config)->shape.vocab_size, (*task)->vocab_size()) << name;
  }
}

TEST(OptionsTest, DefaultsAreAModelThatCanBe) {
  const v1::RunConfig config = Config({});
  EXPECT_TRUE(FindRunModel(config)->shape.Validate().ok());
  EXPECT_TRUE(MakePolicyTrainerOptions(config, FindRunModel(config)->shape).step.Validate().ok());
  EXPECT_TRUE(MakePolicyTrainerOptions(config, FindRunModel(config)->shape).optimizer.Validate().ok());
}

TEST(OptionsTest, WeightsTravelInTheDtypeOfTheRollouters) {
  EXPECT_EQ(ToWireDType(Config({})), DType::kFloat32);
  // The dtype does not depend on the hardware of a daemon's machine.
  EXPECT_EQ(ToWireDType(Config({"rollout.device=auto"})), DType::kFloat32);
  EXPECT_EQ(ToWireDType(Config({"rollout.device=cuda:1"})), DType::kBFloat16);
  EXPECT_EQ(ToWireDType(Config({"train.device=cuda"})), DType::kFloat32);
  EXPECT_EQ(ToWireDType(Config({"rollout.device=cuda", "model.dtype=float32"})), DType::kFloat32);
  EXPECT_EQ(ToWireDType(Config({"model.dtype=bfloat16"})), DType::kBFloat16);
  EXPECT_EQ(MakeEngineOptions(Config({"model.dtype=bfloat16"}), {}).dtype, DType::kBFloat16);
}

TEST(OptionsTest, TheEngineHearsOfDeterminismIfAsked) {
  EXPECT_EQ(MakeEngineOptions(Config({}), {}).host_kv_bytes, 0);
  EXPECT_EQ(MakeEngineOptions(Config({"rollout.host_kv_memory=1.5"}), {}).host_kv_bytes, int64_t{3} << 29);
  EXPECT_FALSE(MakeEngineOptions(Config({}), {}).deterministic);
  EXPECT_TRUE(MakeEngineOptions(Config({"rollout.deterministic=true"}), {}).deterministic);
}

TEST(OptionsTest, RolloutersTakeTheGpusThatTheTrainerLeaves) {
  const v1::RunConfig config = Config({"train.device=cuda", "rollout.device=cuda", "rollouter.index=2"});
  const model::Hardware four{.built_with_cuda = true, .gpus = 4}, one{.built_with_cuda = true, .gpus = 1};
  EXPECT_EQ(*model::ChooseDevice(TrainDeviceRequest(config), four), "cuda:0");
  EXPECT_EQ(*model::ChooseDevice(RolloutDeviceRequest(config), four), "cuda:3");
  EXPECT_EQ(*model::ChooseDevice(RolloutDeviceRequest(config), one), "cuda:0");
}

TEST(OptionsTest, EachRankOfTheTrainerTakesAGpuOfItsOwnAsLongAsThereAreAny) {
  const v1::RunConfig config = Config({"trainer.world=2", "train.device=cuda", "rollout.device=cuda"});
  const model::Hardware three{.built_with_cuda = true, .gpus = 3}, two{.built_with_cuda = true, .gpus = 2};
  EXPECT_EQ(*model::ChooseDevice(TrainDeviceRequest(config, /*rank=*/1), three), "cuda:1");
  EXPECT_EQ(*model::ChooseDevice(RolloutDeviceRequest(config), three), "cuda:2");
  EXPECT_EQ(*model::ChooseDevice(RolloutDeviceRequest(config), two), "cuda:0");
  // The hardware of a pod with one GPU.
  const model::Hardware one{.built_with_cuda = true, .gpus = 1};
  EXPECT_EQ(*model::ChooseDevice(TrainDeviceRequest(config, /*rank=*/1), one), "cuda:0");
}

TEST(OptionsTest, RanksThatTakeTurnsShareTheGpuOfTheirNumber) {
  const model::Hardware two{.built_with_cuda = true, .gpus = 2};
  for (const int rank : {0, 1}) {
    const v1::RunConfig config =
        Config({"run.share_gpu=true", "trainer.world=2", "rollout.tensor_parallel=2", "train.device=cuda",
                "rollout.device=cuda", absl::StrCat("rollouter.rank=", rank), "rollouter.rank0=127.0.0.1:1"});
    EXPECT_EQ(*model::ChooseDevice(TrainDeviceRequest(config, rank), two), absl::StrCat("cuda:", rank));
    EXPECT_EQ(*model::ChooseDevice(RolloutDeviceRequest(config), two), absl::StrCat("cuda:", rank));
  }
}

TEST(OptionsTest, ASyncLeavesRoomForTheCallsOfRanks) {
  EXPECT_EQ(SyncMaxCtas(Config({})), 0);
  EXPECT_EQ(SyncMaxCtas(Config({"trainer.world=2"})), 16);
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

TEST(OptionsTest, TheScheduleEndsWithTheRunUnlessToldOtherwise) {
  auto optimizer = [](const std::vector<std::string>& overrides) {
    return MakePolicyTrainerOptions(Config(overrides), {}).optimizer;
  };
  EXPECT_EQ(optimizer({}).schedule, trainer::Schedule::kConstant);
  EXPECT_TRUE(optimizer({}).decay_all);
  EXPECT_FALSE(optimizer({"train.weight_decay_on=matrices"}).decay_all);
  const auto cosine =
      optimizer({"train.schedule=cosine", "run.steps=30", "train.updates_per_batch=2", "train.warmup_updates=5"});
  EXPECT_EQ(cosine.schedule, trainer::Schedule::kCosine);
  EXPECT_EQ(cosine.schedule_updates, 60);
  EXPECT_EQ(cosine.warmup_updates, 5);
  const auto linear =
      optimizer({"train.schedule=linear", "train.schedule_updates=7", "train.final_learning_rate_fraction=0.1"});
  EXPECT_EQ(linear.schedule, trainer::Schedule::kLinear);
  EXPECT_EQ(linear.schedule_updates, 7);
  EXPECT_EQ(linear.final_fraction, 0.1);
  EXPECT_EQ(ParseRunConfig("", "defaults", {"train.schedule=linear", "train.warmup_updates=100"}).problems.size(), 1u);
}

TEST(OptionsTest, SupervisedStepsMayHaveALearningRateOfTheirOwnBeforeTheSchedule) {
  const auto options = MakePolicyTrainerOptions(
      Config({"train.sft_steps=20", "train.sft_learning_rate=0.01", "train.schedule=linear", "run.steps=50"}), {});
  EXPECT_EQ(options.optimizer.supervised_updates, 20);
  EXPECT_EQ(options.optimizer.supervised_rate, 0.01);
  EXPECT_EQ(options.optimizer.schedule_updates, 30);
  EXPECT_EQ(MakePolicyTrainerOptions(Config({"train.sft_steps=20"}), {}).optimizer.supervised_updates, 0);
  EXPECT_EQ(ParseRunConfig("", "defaults", {"train.sft_learning_rate=0.01"}).problems.size(), 1u);
  EXPECT_EQ(
      ParseRunConfig("", "defaults", {"train.sft_learning_rate=0.01", "train.sft_steps=5", "train.warmup_updates=5"})
          .problems.size(),
      1u);
}

TEST(OptionsTest, WhatComputesAndWhatIsComputedAgainFollowTheConfiguration) {
  const auto options = [](const std::vector<std::string>& overrides) {
    return MakePolicyTrainerOptions(Config(overrides), {});
  };
  EXPECT_EQ(options({}).compute_dtype, std::nullopt);
  EXPECT_EQ(options({"train.compute_dtype=bfloat16"}).compute_dtype, DType::kBFloat16);
  EXPECT_EQ(options({"train.compute_dtype=float32"}).compute_dtype, DType::kFloat32);
  EXPECT_EQ(options({}).reduce_dtype, DType::kFloat32);
  EXPECT_EQ(options({"train.reduce_dtype=bfloat16"}).reduce_dtype, DType::kBFloat16);
  EXPECT_EQ(options({}).step.recompute, trainer::Recompute::kSelective);
  EXPECT_EQ(options({"train.recompute=none"}).step.recompute, trainer::Recompute::kNone);
  EXPECT_FALSE(options({}).step.deterministic);
  EXPECT_TRUE(options({"train.deterministic=true"}).step.deterministic);
  EXPECT_EQ(options({"train.recompute=full"}).step.recompute, trainer::Recompute::kFull);
  EXPECT_FALSE(options({}).memory.offload_params || options({}).memory.offload_optimizer_for_logprob ||
               options({}).memory.offload_reference);
  EXPECT_TRUE(options({"train.offload_params=true"}).memory.offload_params);
  EXPECT_TRUE(
      options({"train.offload_optimizer_for_logprob=true", "train.kl_coef=0.1"}).memory.offload_optimizer_for_logprob);
  EXPECT_TRUE(options({"train.offload_reference=true", "train.kl_coef=0.1"}).memory.offload_reference);
  EXPECT_EQ(options({}).memory.empty_cache, trainer::EmptyCache::kOnPressure);
  EXPECT_EQ(options({"run.share_gpu=true"}).memory.empty_cache, trainer::EmptyCache::kNever);
  EXPECT_EQ(options({"train.empty_cache_after_update=always"}).memory.empty_cache, trainer::EmptyCache::kAlways);
  EXPECT_EQ(options({"train.empty_cache_after_update=never"}).memory.empty_cache, trainer::EmptyCache::kNever);
  EXPECT_TRUE(options({"train.float32_logits=true"}).step.float32_logits);
}

TEST(OptionsTest, CorrectionAndSamplingFollowTheConfiguration) {
  EXPECT_EQ(MakePolicyTrainerOptions(Config({"train.correction=tis"}), {}).step.loss.correction,
            loss::Correction::kTis);
  EXPECT_EQ(MakePolicyTrainerOptions(Config({"train.correction=none"}), {}).step.loss.correction,
            loss::Correction::kNone);
  const v1::RunConfig config = Config({"rollout.temperature=0.5"});
  auto task = trainer::MakeTask(MakeTaskOptions(config)).value();
  EXPECT_EQ(MakeSampling(config, *task).temperature, 0.5f);
  EXPECT_EQ(MakeSampling(config, *task).stop_token_ids, task->stop_token_ids());
  EXPECT_EQ(MakeEvaluationSampling(config, *task).temperature, 0.0f);
}

TEST(OptionsTest, EveryAlgorithmIsReachedByItsName) {
  const loss::LossOptions options = MakeLossOptions(Config({"train.advantage=gdpo",
                                                            "train.advantage_eps=1e-4",
                                                            "train.reward_weights=right=1,form=0.5",
                                                            "train.policy_loss=gspo",
                                                            "train.clip_low=3e-4",
                                                            "train.clip_high=4e-4",
                                                            "train.dual_clip=3",
                                                            "train.proximal=a3po",
                                                            "train.correction=seq_mask_tis",
                                                            "train.tis_cap=3",
                                                            "train.tis_floor=0.1",
                                                            "train.geometric_low=0.9",
                                                            "train.geometric_high=1.1",
                                                            "train.veto=1e-4",
                                                            "train.reject=k3",
                                                            "train.reject_over=mean",
                                                            "train.reject_high=0.5",
                                                            "train.opsm_delta=0.1",
                                                            "train.aggregation=prompt_mean",
                                                            "train.kl_coef=0.01",
                                                            "train.kl_estimator=k3",
                                                            "train.kl_importance=true",
                                                            "train.kl_tau=1e-3",
                                                            "train.entropy_coef=1e-3",
                                                            "train.overlong=mask",
                                                            "rollout.max_new_tokens=7"}));
  EXPECT_EQ(options.advantage.estimator, loss::AdvantageEstimator::kGdpo);
  EXPECT_EQ(options.advantage.eps, 1e-4);
  EXPECT_EQ(options.advantage.reward_weights, (std::vector<loss::RewardWeight>{{"right", 1}, {"form", 0.5}}));
  EXPECT_EQ(options.surrogate, loss::Surrogate::kGspo);
  EXPECT_EQ(options.clip_low, 3e-4);
  EXPECT_EQ(options.dual_clip, 3);
  EXPECT_EQ(options.proximal, loss::Proximal::kA3po);
  EXPECT_EQ(options.correction, loss::Correction::kSeqMaskTis);
  EXPECT_EQ(options.tis_floor, 0.1);
  EXPECT_EQ(options.geometric_high, 1.1);
  EXPECT_EQ(options.veto, 1e-4);
  EXPECT_EQ(options.rejection, loss::Rejection::kK3);
  EXPECT_EQ(options.rejection_level, loss::RejectionLevel::kMean);
  EXPECT_EQ(options.rejection_high, 0.5);
  EXPECT_EQ(options.opsm_delta, 0.1);
  EXPECT_EQ(options.aggregation, loss::Aggregation::kPromptMean);
  EXPECT_EQ(options.kl_coefficient, 0.01);
  EXPECT_EQ(options.kl_estimator, loss::KlEstimator::kK3);
  EXPECT_TRUE(options.kl_importance);
  EXPECT_EQ(options.kl_tau, 1e-3);
  EXPECT_EQ(options.entropy_coefficient, 1e-3);
  EXPECT_EQ(options.overlong, loss::Overlong::kMask);
  EXPECT_EQ(options.max_response_tokens, 7);
}

// The choices of a key in config.proto.
std::vector<std::string> GetChoices(const std::string& key) {
  const ConfigSchema schema;
  const auto& choices = schema.Find(key)->option.choices();
  return {choices.begin(), choices.end()};
}

template <typename Part>
void ExpectNames(const std::string& key) {
  for (const std::string& choice : GetChoices(key)) EXPECT_TRUE(loss::FindPart<Part>(choice).has_value()) << choice;
  for (int i = 0; loss::GetName(static_cast<Part>(i)) != "?"; ++i) {
    EXPECT_THAT(GetChoices(key), ::testing::Contains(loss::GetName(static_cast<Part>(i))));
  }
}

TEST(OptionsTest, TheChoicesOfTheConfigurationAreTheNamesOfTheParts) {
  ExpectNames<loss::AdvantageEstimator>("train.advantage");
  ExpectNames<loss::Surrogate>("train.policy_loss");
  ExpectNames<loss::Proximal>("train.proximal");
  ExpectNames<loss::Correction>("train.correction");
  ExpectNames<loss::Rejection>("train.reject");
  ExpectNames<loss::RejectionLevel>("train.reject_over");
  ExpectNames<loss::Aggregation>("train.aggregation");
  ExpectNames<loss::KlEstimator>("train.kl_estimator");
  ExpectNames<loss::Overlong>("train.overlong");
}

TEST(OptionsTest, TheDefaultsOfTheConfigurationAreThoseOfTheOptions) {
  const loss::LossOptions configured = MakeLossOptions(Config({})), plain;
  EXPECT_EQ(configured.advantage.estimator, plain.advantage.estimator);
  EXPECT_EQ(configured.surrogate, plain.surrogate);
  EXPECT_EQ(configured.correction, plain.correction);
  EXPECT_EQ(configured.chosen_proximal(), plain.chosen_proximal());
  EXPECT_EQ(configured.chosen_aggregation(), plain.chosen_aggregation());
  for (double loss::LossOptions::*number : {&loss::LossOptions::clip_low,
                                            &loss::LossOptions::clip_high,
                                            &loss::LossOptions::dual_clip,
                                            &loss::LossOptions::mis_low,
                                            &loss::LossOptions::mis_high,
                                            &loss::LossOptions::tis_cap,
                                            &loss::LossOptions::tis_floor,
                                            &loss::LossOptions::seq_tis_cap,
                                            &loss::LossOptions::geometric_low,
                                            &loss::LossOptions::geometric_high,
                                            &loss::LossOptions::veto,
                                            &loss::LossOptions::rejection_low,
                                            &loss::LossOptions::rejection_high,
                                            &loss::LossOptions::opsm_delta,
                                            &loss::LossOptions::kl_coefficient,
                                            &loss::LossOptions::kl_tau,
                                            &loss::LossOptions::entropy_coefficient,
                                            &loss::LossOptions::sapo_tau_positive,
                                            &loss::LossOptions::sapo_tau_negative,
                                            &loss::LossOptions::overlong_factor}) {
    EXPECT_EQ(configured.*number, plain.*number);
  }
}

// What is not on a rollouter's GPU when it sizes keys and values, and may come.
TEST(OptionsTest, OnASharedGpuABaseThatIsMappedTakesNoFurtherRoomAndOneThatMayBeReceivedDoes) {
  const auto late = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"model.dtype=bfloat16", "train.device=cuda:0"});
    const v1::RunConfig config = Config(words);
    const auto model = FindRunModel(config);
    EXPECT_TRUE(model.ok()) << model.status();
    const auto wire = MakeWireManifest(config, model->shape);
    EXPECT_TRUE(wire.ok()) << wire.status();
    return std::pair(CountLateGpuBytes(config, model->shape, *wire).value(), *wire);
  };
  const std::vector<std::string> one = {"run.share_gpu=true", "run.rollouters=1", "rollout.device=cuda:0"};
  const auto with = [&one](std::vector<std::string> more) {
    more.insert(more.begin(), one.begin(), one.end());
    return more;
  };
  EXPECT_EQ(late({"run.rollouters=1", "lora.rank=8", "rollout.device=cuda:0"}).first, 0) << "without turns";
  const auto [full, full_wire] = late(with({}));
  EXPECT_EQ(full, full_wire.arena_bytes()) << "a send slot";
  const auto several = [&](const std::string& world, const std::string& ranks) {
    return late({"run.share_gpu=true", "run.rollouters=1", "rollout.device=cuda", "train.device=cuda",
                 "trainer.world=" + world, "rollout.tensor_parallel=" + ranks})
        .first;
  };
  // Shards are cut at blocks, and the few embeddings of this model are packed for each rank of a replica.
  constexpr int64_t kSlack = 1 << 14;
  EXPECT_NEAR(static_cast<double>(several("1", "2")), static_cast<double>(full), kSlack)
      << "for both ranks of a replica";
  EXPECT_NEAR(static_cast<double>(several("2", "1")), static_cast<double>(full) / 2, kSlack) << "one shard of two";
  EXPECT_NEAR(static_cast<double>(several("2", "2")), static_cast<double>(full) / 2, kSlack);
  const auto [mapped, wire] = late(with({"lora.rank=8"}));
  const int64_t base = wire.adapters_begin(), adapters = wire.arena_bytes() - base;
  EXPECT_GT(base, adapters);
  EXPECT_EQ(mapped, adapters) << "of a send slot";
  EXPECT_EQ(late(with({"lora.rank=8", "sync.send_slots=3"})).first, 3 * adapters);
  EXPECT_EQ(late(with({"lora.rank=8", "run.rollouters=2"})).first, adapters + base) << "one of two is refused";
  EXPECT_EQ(late(with({"lora.rank=8", "rollout.device=cuda:1"})).first, adapters + base) << "on another GPU";
  EXPECT_EQ(late(with({"lora.rank=8", "rollout.device=auto", "train.device=auto"})).first, adapters + base);
  EXPECT_EQ(late(with({"lora.rank=8", "sync.transport=grpc"})).first, 0) << "its base is there from the start";
}

}  // namespace
}  // namespace syncopate::config
