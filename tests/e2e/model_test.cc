// A Hugging Face model directory goes in, and a directory of the same kind comes out.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "syncopate/v1/trainer.grpc.pb.h"
#include "tests/support/golden_models.h"
#include "tests/support/run_expectations.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::model_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using v1::TrainerService;

std::vector<std::string> SmallRun(const std::string& model, int steps) {
  return {"model.path=" + model,     absl::StrCat("run.steps=", steps),
          "run.rollouters=1",        "eval.prompts=4",
          "data.batch_groups=4",     "rollout.samples=4",
          "eval.show_samples=1",     "train.learning_rate=1e-4",
          "train.device=cpu",        "rollout.device=cpu",
          "rollout.max_new_tokens=5"};
}

std::vector<std::string> NamesIn(const std::string& folder) {
  auto names = FileSystem::Real()->List(folder);
  return names.ok() ? *names : std::vector<std::string>{names.status().ToString()};
}

TEST(GenerateTest, GivesTheGreedyTokensOfTransformers) {
  for (const char* name : {"llama-biases", "qwen2-tied", "mistral", "qwen3-moe"}) {
    const Golden golden = ReadGolden(name);
    const CommandResult result =
        RunSyncopate({"generate", GoldenModelPath(name), "--ids", absl::StrJoin(golden.prompts[0], ","),
                      "--max-new-tokens", "8", "--json"});
    ASSERT_EQ(result.code, 0) << result.output;
    const std::vector<Json> lines = JsonLines(result.output);
    ASSERT_EQ(lines.size(), 1u) << result.output;
    EXPECT_EQ(lines[0]["ids"].get<std::vector<int32_t>>(), golden.greedy[0]);
    EXPECT_EQ(lines[0]["logprobs"].size(), golden.greedy[0].size());
    for (const Json& logprob : lines[0]["logprobs"]) EXPECT_LT(logprob.get<double>(), 0);
  }
}

TEST(GenerateTest, GivesTheGreedyTokensOfPeftWithItsAdapters) {
  for (const char* name : kGoldenAdapters) {
    const Golden golden = ReadGoldenFolder(GoldenAdapterPath(name));
    const CommandResult result =
        RunSyncopate({"generate", GoldenModelPath(golden.base), "--adapter", GoldenAdapterPath(name), "--ids",
                      absl::StrJoin(golden.prompts[1], ","), "--max-new-tokens", "8", "--json"});
    ASSERT_EQ(result.code, 0) << result.output;
    EXPECT_EQ(JsonLines(result.output).at(0)["ids"].get<std::vector<int32_t>>(), golden.greedy[1]) << name;
  }
  const CommandResult other = RunSyncopate(
      {"generate", GoldenModelPath("mistral"), "--adapter", GoldenAdapterPath("llama-all"), "--ids", "1,2"});
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.output, HasSubstr("were the adapters made for another base?"));
}

TEST(GenerateTest, SaysWhatItCannotDo) {
  const std::string model = GoldenModelPath("mistral-window");  // a window of 48 tokens
  const CommandResult table = RunSyncopate({"generate", model, "--ids=1,2", "--temperature=0.7", "--max-new-tokens=3"});
  EXPECT_EQ(table.code, 0) << table.output;
  EXPECT_THAT(table.output, HasSubstr("LOG-PROB"));
  const CommandResult unknown = RunSyncopate({"generate", model, "--ids", "1,72"});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.output, HasSubstr("token id 72"));
  const CommandResult beyond = RunSyncopate({"generate", model, "--ids", "1,2", "--max-new-tokens", "60", "--json"});
  EXPECT_EQ(beyond.code, 0) << beyond.output << "a window is no limit on the CPU";
  const CommandResult nowhere = RunSyncopate({"generate", "some-org/some-model", "--ids", "1"});
  EXPECT_EQ(nowhere.code, 1);
  EXPECT_THAT(nowhere.output, HasSubstr("hf download some-org/some-model"));
  EXPECT_EQ(RunSyncopate({"generate", model}).code, 2);
}

// The build of the demo may be older than the program; the files of a bundle may have been separated.
TEST(GenerateTest, SaysHowItsProgramIsBuiltWhereItIsNot) {
  TempDir folder;
  std::filesystem::copy_file(BinaryPath("syncopate"), folder.path() + "/syncopate");
  const std::string log = folder.path() + "/log";
  EXPECT_NE(std::system(absl::StrCat(folder.path(), "/syncopate generate model --ids 1 2> ", log).c_str()), 0);
  EXPECT_THAT(ReadFile(FileSystem::Real(), log, 1 << 20).value(),
              HasSubstr("scripts/build.sh release syncopate-generate builds it"));
}

// An export of a run of `name` generates what the golden model generates.
void ExpectGolden(const std::string& exported, const std::string& name = "llama-linear") {
  EXPECT_THAT(NamesIn(exported), ElementsAre("config.json", "generation_config.json", "model.safetensors"));
  const Golden golden = ReadGolden(name);
  const CommandResult generated = RunSyncopate(
      {"generate", exported, "--ids", absl::StrJoin(golden.prompts[1], ","), "--max-new-tokens", "8", "--json"});
  ASSERT_EQ(JsonLines(generated.output).size(), 1u) << generated.output;
  EXPECT_EQ(JsonLines(generated.output)[0]["ids"].get<std::vector<int32_t>>(), golden.greedy[1]);
}

// Writes a checkpoint of a run of `name` to `exported`.
void ExportAndGenerate(const std::string& checkpoint, const std::string& exported,
                       const std::string& name = "llama-linear") {
  const CommandResult result = RunSyncopate({"export", checkpoint, exported, "--dtype", "float32"});
  EXPECT_EQ(result.code, 0) << result.output;
  ExpectGolden(exported, name);
}

TEST(ModelDirectoryTest, ARunBeginsWithItsWeightsAndItsCheckpointsGoOutAgain) {
  // Steps this small change each number of a bf16 model by less than rounding does.
  RunHarness run(SmallRun(GoldenModelPath("llama-linear"), 3));
  ExpectEnd(run.Run({"train.learning_rate=1e-12"}), 0);
  EXPECT_EQ(run.LastStep(), 3);
  EXPECT_THAT(NamesIn(run.Path("model")), ElementsAre("config.json", "generation_config.json"));

  const std::string exported = run.temp_dir() + "/exported";
  ExportAndGenerate(run.Path("checkpoints/e1-s3"), exported);
  const CommandResult again = RunSyncopate({"export", run.Path("checkpoints/e1-s3"), exported});
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.output, HasSubstr("is not empty"));
  EXPECT_EQ(RunSyncopate({"export", run.Path("checkpoints/e1-s9"), exported}).code, 1);
}

TEST(ModelDirectoryTest, WhatTwoRanksHoldGoesOutAsOneModelWhileTheyTrainAndFromTheirCheckpoint) {
  RunHarness run(SmallRun(GoldenModelPath("llama-linear"), 1000000));
  const auto trained = run.Run({"train.learning_rate=1e-12", "trainer.world=2", "checkpoint.every_steps=0"});
  ASSERT_THAT(trained, IsOk());
  const auto endpoint = run.Endpoint("trainer");
  ASSERT_THAT(endpoint, IsOk());
  v1::TrainerServiceExportModelRequest request;
  request.set_name("first");
  request.set_dtype("float32");
  const auto exported = Call<TrainerService>(endpoint->grpc, &TrainerService::Stub::ExportModel, request);
  ASSERT_THAT(exported, IsOk());
  EXPECT_THAT(NamesIn(run.Path("exports")), ElementsAre("first"));
  ExpectGolden(exported->path());

  const auto stopped = run.Ctl({"stop"});
  ASSERT_THAT(stopped, IsOk());
  EXPECT_EQ(stopped->code, 0) << stopped->output;
  ASSERT_THAT((*trained)->WaitExit(2 * kPatience), IsOk());
  const std::string checkpoint = run.Path(absl::StrCat("checkpoints/e1-s", run.LastStep()));
  EXPECT_THAT(NamesIn(checkpoint),
              ElementsAre("data.pb", "manifest.json", "model-0-of-2.safetensors", "model-1-of-2.safetensors",
                          "optimizer-0-of-2.safetensors", "optimizer-1-of-2.safetensors"));
  ExportAndGenerate(checkpoint, run.temp_dir() + "/exported");
}

// The model passes through all daemons: two ranks train it, and a rollouter of two ranks generates with it.
TEST(ModelDirectoryTest, ExpertsAndWindowsTrainSyncGenerateAndGoOutAgain) {
  RunHarness run(SmallRun(GoldenModelPath("qwen3-moe"), 3));
  ExpectEnd(run.Run({"train.learning_rate=1e-12", "trainer.world=2", "rollout.tensor_parallel=2"}), 0);
  EXPECT_EQ(run.LastStep(), 3);
  ExportAndGenerate(run.Path("checkpoints/e1-s3"), run.temp_dir() + "/exported", "qwen3-moe");
  RunHarness slides(SmallRun(GoldenModelPath("mistral-slides"), 3));
  ExpectEnd(slides.Run({"train.learning_rate=1e-12"}), 0);
  ExportAndGenerate(slides.Path("checkpoints/e1-s3"), slides.temp_dir() + "/exported", "mistral-slides");
}

// The ranks of its rollouter have no file: each asks the trainer for the model, and rank 0 once more for the devices
// of all.
TEST(ModelDirectoryTest, AReplicaThatTakesTurnsLearnsTheModelBeforeItNamesItsDevices) {
  RunHarness run(SmallRun(GoldenModelPath("qwen3-moe"), 3));
  ExpectEnd(
      run.Run({"train.learning_rate=1e-12", "run.share_gpu=true", "trainer.world=2", "rollout.tensor_parallel=2"}), 0);
  EXPECT_EQ(run.LastStep(), 3);
  for (const Json& step : run.Records("step")) EXPECT_GT(step["turn_moved_bytes"], 0) << step;
  ExportAndGenerate(run.Path("checkpoints/e1-s3"), run.temp_dir() + "/exported", "qwen3-moe");
}

TEST(ModelDirectoryTest, ARunIsResumedWhenTheDirectoryIsGone) {
  RunHarness run(SmallRun("given-below", 2));
  const std::string model = run.temp_dir() + "/model";
  std::filesystem::copy(GoldenModelPath("llama-biases"), model);
  ExpectEnd(run.Run({"model.path=" + model}), 0);
  std::filesystem::remove_all(model);
  ExpectEnd(run.Resume({"--steps=4"}), 0);
  EXPECT_EQ(run.LastStep(), 4);
}

TEST(ModelDirectoryTest, ARunIsResumedWithTheSameModelElsewhereAndWithNoOther) {
  RunHarness run(SmallRun(GoldenModelPath("llama-biases"), 1));
  ExpectEnd(run.Run(), 0);
  const std::string moved = run.temp_dir() + "/moved", other = run.temp_dir() + "/other";
  std::filesystem::copy(GoldenModelPath("llama-biases"), moved);
  std::filesystem::copy(GoldenModelPath("llama-biases"), other);
  const std::string shard = other + "/model-00003-of-00003.safetensors";
  std::fstream weights(shard, std::ios::in | std::ios::out | std::ios::binary);
  weights.seekp(-1, std::ios::end);
  weights.put('\x3c');
  weights.close();

  const auto refused = run.Resume({"--steps=2", "model.path=" + other});
  ASSERT_THAT(refused, IsOk());
  const auto exit = (*refused)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_NE(exit->code, 0);
  EXPECT_THAT(run.Log("trainer-0"),
              AllOf(HasSubstr("FIXED_KEY"), HasSubstr("model-00003-of-00003.safetensors differs")));
  EXPECT_EQ(run.LastStep(), 1);
  ExpectEnd(run.Resume({"--steps=2", "model.path=" + moved}), 0);
  EXPECT_EQ(run.LastStep(), 2);
}

TEST(ModelDirectoryTest, ATrainerWritesItsPolicyWhenItIsAsked) {
  RunHarness run(SmallRun(GoldenModelPath("llama3-tied"), 1000000));
  auto synchronizer = run.StartDaemon("synchronizer");
  ASSERT_THAT(synchronizer, IsOk());
  auto trainer = run.StartDaemon("trainer");
  ASSERT_THAT(trainer, IsOk());
  const auto endpoint = run.Endpoint("trainer");
  ASSERT_THAT(endpoint, IsOk());
  v1::TrainerServiceExportModelRequest request;
  request.set_name("first");
  const auto exported = Call<TrainerService>(endpoint->grpc, &TrainerService::Stub::ExportModel, request);
  ASSERT_THAT(exported, IsOk());
  EXPECT_EQ(exported->path(), run.Path("exports/first"));
  EXPECT_EQ(exported->version().step(), 0);
  EXPECT_GT(exported->bytes(), 10000);
  EXPECT_EQ(RunSyncopate({"generate", exported->path(), "--ids=1,2,3", "--json"}).code, 0);
  EXPECT_THAT(Call<TrainerService>(endpoint->grpc, &TrainerService::Stub::ExportModel, request),
              HasReason("FOLDER_TAKEN"));
  request.set_name("../outside");
  EXPECT_THAT(Call<TrainerService>(endpoint->grpc, &TrainerService::Stub::ExportModel, request), HasReason("BAD_NAME"));
  request.set_name("second");
  request.set_dtype("int4");
  EXPECT_THAT(Call<TrainerService>(endpoint->grpc, &TrainerService::Stub::ExportModel, request),
              HasReason("BAD_DTYPE"));
}

TEST(ModelDirectoryTest, ATrainerThatCannotReadItSaysWhichFileAndTensor) {
  RunHarness run(SmallRun("given-below", 2));
  const std::string model = run.temp_dir() + "/model";
  std::filesystem::copy(GoldenModelPath("llama-biases"), model);
  std::filesystem::remove(model + "/model-00002-of-00003.safetensors");
  auto synchronizer = run.StartDaemon("synchronizer");
  ASSERT_THAT(synchronizer, IsOk());
  const auto trainer = run.StartDaemon("trainer", 0, {"model.path=" + model});
  EXPECT_THAT(trainer, HasMessage(HasSubstr("model.path")));
  EXPECT_THAT(trainer, HasMessage(HasSubstr("model-00002-of-00003.safetensors is missing, which contains tensor ")));
}

}  // namespace
}  // namespace syncopate::testing::model_test
