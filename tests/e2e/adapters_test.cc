// Runs that train adapters. Replicas that lack the base get it, all replicas get the adapters, and both equal those of
// the twin.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/decoder_spec.h"
#include "model/model_config.h"
#include "syncopate/v1/trainer.grpc.pb.h"
#include "tests/support/adapter_syncs.h"
#include "tests/support/golden_models.h"
#include "tests/support/run_expectations.h"
#include "tests/support/run_harness.h"
#include "tests/support/small_model.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::adapters_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using v1::TrainerService;

TEST(AdaptersTest, StrictlyOnPolicyARunHasTheBitsOfItsTwinAndItsFirstSyncsAloneSendTheBase) {
  constexpr int64_t kSteps = 12;
  const std::vector<std::string> common = {"lora.rank=4", "train.kl_coef=0.01", "staleness.max_staleness=0",
                                           "run.seed=3", absl::StrCat("run.steps=", kSteps)};
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"run.rollouters=2"},
        {"run.rollouters=1", "trainer.world=2", "rollout.tensor_parallel=2",
         "lora.target_modules=v_proj,o_proj,down_proj", "lora.scaling=rslora"}}) {
    std::vector<std::string> overrides = common;
    overrides.insert(overrides.end(), more.begin(), more.end());
    RunHarness run(overrides);
    ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Run(), 0));
    auto twin = TwinDigests(run.config(), run.overrides(), kSteps);
    ASSERT_THAT(twin, IsOk());
    EXPECT_EQ(run.Digests(), *twin);
    const std::vector<Json> steps = run.Records("step");
    ASSERT_EQ(steps.size(), static_cast<size_t>(kSteps));
    EXPECT_EQ(steps.front()["reference_kl"], 0) << "new adapters are the base";
    EXPECT_EQ(steps.front()["reference_device_bytes"], 0) << "the reference needs no copy";
    const Json bytes = run.Summary()["syncs"];
    EXPECT_EQ(bytes["failed"], 0);
  }
}

// With one set of weights the base is received once and stays; each sync brings adapters in place.
TEST(AdaptersTest, InstallsInPlaceGiveTheBitsOfTheTwinToo) {
  constexpr int64_t kSteps = 12;
  RunHarness run({"lora.rank=4", "sync.install=in_place", "staleness.max_staleness=0", "run.rollouters=1", "run.seed=3",
                  absl::StrCat("run.steps=", kSteps)});
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Run(), 0));
  const auto twin = TwinDigests(run.config(), run.overrides(), kSteps);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(run.Digests(), *twin);
  const Json syncs = run.Summary()["syncs"];
  EXPECT_EQ(syncs["failed"], 0);
  const WireBytes bytes = CountWireBytes(4);
  EXPECT_LE(syncs["bytes"].get<int64_t>(), bytes.padded_base + (kSteps + 1) * bytes.adapters);
  EXPECT_GE(syncs["bytes"].get<int64_t>(), bytes.base + kSteps * bytes.adapters);
}

// Daemons that start and end one by one while a run goes on, and the syncs that each start or end causes.
class AdapterSyncsTest : public ::testing::Test {
 protected:
  AdapterSyncsTest()
      : run_({"lora.rank=4", "run.steps=1000000", "eval.every_steps=0", "checkpoint.every_steps=0"}),
        wire_(CountWireBytes(4)) {}

  void Start(const std::string& role, int64_t index = 0, const std::vector<std::string>& more = {}) {
    auto daemon = run_.StartDaemon(role, index, more);
    ASSERT_THAT(daemon, IsOk());
    daemons_[absl::StrCat(role, "-", index)] = *std::move(daemon);
  }
  void Do(const std::vector<std::string>& args) {
    auto result = run_.Ctl(args);
    ASSERT_THAT(result, IsOk());
    EXPECT_EQ(result->code, 0) << args[0] << ": " << result->output;
  }
  // The successful syncs of a replica, in order, of versions above `after`.
  std::vector<Json> GetSyncs(const std::string& replica, int64_t after) {
    std::vector<Json> syncs = ReadSyncs(run_, replica);
    std::erase_if(syncs, [after](const Json& sync) {
      return (sync["result"] != "ok" && sync["result"] != "relabelled") || GetStep(sync) <= after;
    });
    return syncs;
  }
  static int64_t GetStep(const Json& line) { return GetNumber(line["version"]["step"]); }
  // Expects the next `count` successful syncs of a replica after those already recorded.
  void ExpectNext(const std::string& why, const std::string& replica, bool base_first) {
    constexpr size_t kCount = 3;
    std::vector<Json> syncs;
    ASSERT_TRUE(Eventually(kPatience, [&] {
      syncs = GetSyncs(replica, seen_.count(replica) > 0 ? seen_[replica] : kNone);
      return syncs.size() >= kCount;
    })) << why;
    for (size_t i = 0; i < kCount; ++i) {
      const bool relabelled = syncs[i]["result"] == "relabelled";
      const bool sends_base = i == 0 && base_first;
      EXPECT_GE(GetBytes(syncs[i], "full"), sends_base ? wire_.base : 0) << why << " " << syncs[i];
      EXPECT_LE(GetBytes(syncs[i], "full"), sends_base ? wire_.padded_base : 0) << why << " " << syncs[i];
      EXPECT_EQ(GetBytes(syncs[i], "lora"), relabelled ? 0 : wire_.adapters) << why << " " << syncs[i];
    }
    seen_[replica] = GetStep(syncs.back());
  }
  void Forget(const std::string& replica) {
    const std::vector<Json> syncs = GetSyncs(replica, kNone);
    if (!syncs.empty()) seen_[replica] = GetStep(syncs.back());
  }

  static constexpr int64_t kNone = -1;  // the first version is of step 0

  RunHarness run_;
  const WireBytes wire_;
  std::map<std::string, std::unique_ptr<Process>> daemons_;
  std::map<std::string, int64_t> seen_;  // the step of the newest sync that was checked, by replica
};

TEST_F(AdapterSyncsTest, TheBaseIsSentToThoseWhoLackItAndToNobodyElse) {
  for (const char* role : {"synchronizer", "trainer", "rollouter"}) ASSERT_NO_FATAL_FAILURE(Start(role));
  ExpectNext("the first syncs", "rollouter-0", true);
  ASSERT_NO_FATAL_FAILURE(Start("rollouter", 1));
  ExpectNext("a late joiner", "rollouter-1", true);
  ExpectNext("beside a late joiner", "rollouter-0", false);

  for (const char* level : {"1", "2"}) {
    Do({"drain", "rollouter-1"});
    Do({"sleep", "rollouter-1", "--level", level});
    Forget("rollouter-1");
    Do({"wake", "rollouter-1"});
    Do({"resume", "rollouter-1"});
    ExpectNext(absl::StrCat("after a sleep of level ", level), "rollouter-1", level == std::string("2"));
  }

  ASSERT_EQ(kill(daemons_["rollouter-1"]->pid(), SIGKILL), 0);
  ASSERT_THAT(daemons_["rollouter-1"]->WaitExit(kPatience), IsOk());
  Forget("rollouter-1");
  ASSERT_NO_FATAL_FAILURE(Start("rollouter", 1));
  ExpectNext("a restarted rollouter", "rollouter-1", true);

  daemons_["trainer-0"]->Interrupt();
  ASSERT_THAT(daemons_["trainer-0"]->WaitExit(kPatience), IsOk());
  for (const char* name : {"rollouter-0", "rollouter-1"}) Forget(name);
  ASSERT_NO_FATAL_FAILURE(Start("trainer", 0, {"run.resume=true"}));
  for (const char* name : {"rollouter-0", "rollouter-1"}) ExpectNext("a restarted trainer", name, false);

  ASSERT_EQ(kill(daemons_["synchronizer-0"]->pid(), SIGKILL), 0);
  ASSERT_THAT(daemons_["synchronizer-0"]->WaitExit(kPatience), IsOk());
  ASSERT_NO_FATAL_FAILURE(Start("synchronizer"));
  for (const char* name : {"rollouter-0", "rollouter-1"}) ExpectNext("a restarted synchronizer", name, false);
}

// The process among those of this run whose command line has all these words.
pid_t FindProcess(const RunHarness& run, const std::vector<std::string>& words) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    const std::string line((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    bool all = line.find(run.temp_dir()) != std::string::npos;
    for (const std::string& word : words) all = all && line.find(word) != std::string::npos;
    if (all) return std::stoi(name);
  }
  return 0;
}

// Changes a bit in the middle of the base weights that a rollouter's process holds.
void DamageBase(pid_t pid) {
  std::ifstream maps(absl::StrCat("/proc/", pid, "/maps"));
  uint64_t begin = 0, end = 0;
  for (std::string line; begin == 0 && std::getline(maps, line);) {
    if (line.find("memfd:base weights") == std::string::npos) continue;
    ASSERT_EQ(std::sscanf(line.c_str(), "%lx-%lx", &begin, &end), 2);
  }
  ASSERT_GT(begin, 0u) << "the process has no such memory";
  // The base of the example's model is the first part of its mapping.
  const auto place = static_cast<std::streamoff>(begin) + 4096;
  std::fstream memory(absl::StrCat("/proc/", pid, "/mem"), std::ios::in | std::ios::out | std::ios::binary);
  memory.seekg(place);
  const char byte = static_cast<char>(memory.get() ^ 1);
  memory.seekp(place);
  memory.put(byte);
  memory.flush();
  ASSERT_TRUE(memory.good());
}

// The base that one rank of a replica holds is changed in its memory. Generation goes on, and syncs of adapters do not
// read it; a check of the weights finds it, and the processes that take the ranks' place are sent the base.
TEST(AdapterDamageTest, ADamagedBaseOfOneRankIsFoundByACheckAndTheReplicaIsSentItAgain) {
  RunHarness run({"lora.rank=4", "run.steps=1000000", "run.rollouters=1", "rollout.tensor_parallel=2",
                  "eval.every_steps=0", "checkpoint.every_steps=0"});
  const auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(3), IsOk());
  const auto base_syncs = [&] {
    const auto printed = run.Ctl({"syncs", "--last", "1000", "--json"});
    int count = 0;
    if (!printed.ok()) return count;
    for (const Json& line : JsonLines(printed->output)) {
      count += line["result"] == "ok" && line["bytes_by_kind"].contains("full") &&
                       line["bytes_by_kind"]["full"] != "0" && line["bytes_by_kind"]["full"] != 0
                   ? 1
                   : 0;
    }
    return count;
  };
  ASSERT_EQ(base_syncs(), 1);
  const pid_t rank = FindProcess(run, {"syncopate-rollouter", "rollouter.rank=1"});
  ASSERT_GT(rank, 0);
  ASSERT_NO_FATAL_FAILURE(DamageBase(rank));
  const int64_t step = run.LastStep();
  ASSERT_THAT(run.AwaitStep(step + 3), IsOk()) << "nobody knows yet";
  EXPECT_EQ(base_syncs(), 1);
  ASSERT_THAT(run.Ctl({"sync"}), IsOk());
  ASSERT_TRUE(Eventually(2 * kPatience, [&] { return base_syncs() == 2; })) << run.Log("rollouter-0");
  EXPECT_NE(FindProcess(run, {"syncopate-rollouter", "rollouter.rank=1"}), rank);
  ASSERT_THAT(run.AwaitStep(run.LastStep() + 2), IsOk());
  ASSERT_THAT(run.Ctl({"stop"}), IsOk());
  ASSERT_THAT((*process)->WaitExit(2 * kPatience), IsOk());
}

// Evaluations of many prompts, with a sync after every step: each is answered by its version, while newer ones are
// installed.
TEST(AdaptersTest, EvaluationsBesideSyncsAreAnsweredByTheirVersionAndDelayNone) {
  RunHarness run({"lora.rank=4", "run.steps=30", "run.rollouters=1", "eval.every_steps=5", "eval.prompts=200",
                  "rollout.max_sequences=16", "checkpoint.every_steps=0", "staleness.max_staleness=4"});
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Run(), 0));
  const std::vector<Json> evaluations = run.Records("eval");
  ASSERT_GE(evaluations.size(), 3u);
  EXPECT_THAT(run.Log("trainer-0"), ::testing::Not(HasSubstr("gets no prompts for")))
      << "prompts that were sent by the pin came back";
  for (const Json& evaluation : evaluations) EXPECT_EQ(evaluation["eval_prompts"], 200) << evaluation;
  const Json syncs = run.Summary()["syncs"];
  EXPECT_EQ(syncs["failed"], 0);
  EXPECT_GE(syncs["count"].get<int64_t>(), 25) << "an evaluation holds no install back: " << syncs;
  EXPECT_EQ(run.Summary()["pause_ms"]["p50"], 0) << "an install of adapters pauses nothing";
}

// A checkpoint is a PEFT directory. A resume on another base is refused, and so is a model that cannot be exported.
TEST(AdaptersTest, ARunIsResumedOnItsBaseAlone) {
  RunHarness run({"lora.rank=4", "run.steps=6", "checkpoint.every_steps=3", "run.rollouters=1", "eval.every_steps=0"});
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Run(), 0));
  const std::string checkpoint = run.Path("checkpoints/e1-s6");
  EXPECT_TRUE(std::filesystem::exists(checkpoint + "/adapter_model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(checkpoint + "/model.safetensors"));
  std::ifstream config(checkpoint + "/adapter_config.json");
  const Json described = Json::parse(config);
  EXPECT_EQ(described["r"], 4);
  EXPECT_EQ(described["lora_alpha"], 8);
  EXPECT_EQ(described["target_modules"], Json(model::LoraConfig::AllProjections()));

  auto exported = RunCommand("syncopate", {"export", checkpoint, run.temp_dir() + "/out"});
  ASSERT_THAT(exported, IsOk());
  EXPECT_EQ(exported->code, 1);
  EXPECT_THAT(exported->output, HasSubstr("--adapter"));
  exported = RunCommand("syncopate", {"export", checkpoint, run.temp_dir() + "/out", "--adapter"});
  ASSERT_THAT(exported, IsOk());
  EXPECT_EQ(exported->code, 0) << exported->output;
  EXPECT_TRUE(std::filesystem::exists(run.temp_dir() + "/out/adapter_config.json"));

  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Resume({"run.steps=9"}), 0));
  EXPECT_EQ(run.Records("step").back()["step"], 9);
}

// Each of two ranks copies its shard of the adapters between two steps, and rank 0 writes one directory of all shards.
TEST(AdaptersTest, WhatTwoRanksTrainGoesOutWhileTheyTrain) {
  const std::string base = GoldenModelPath("llama-linear");
  // Steps this small do not change greedy tokens.
  RunHarness run({"model.path=" + base, "lora.rank=4", "run.steps=1000000", "run.rollouters=1", "trainer.world=2",
                  "eval.every_steps=0", "eval.prompts=4", "checkpoint.every_steps=0", "data.batch_groups=4",
                  "rollout.samples=4", "rollout.max_new_tokens=5", "train.learning_rate=1e-12"});
  const auto trained = run.Run();
  ASSERT_THAT(trained, IsOk());
  const auto endpoint = run.Endpoint("trainer");
  ASSERT_THAT(endpoint, IsOk());
  v1::TrainerServiceExportModelRequest request;
  request.set_name("first");
  request.set_dtype("bfloat16");
  EXPECT_THAT(Call<TrainerService>(endpoint->grpc, &TrainerService::Stub::ExportModel, request),
              HasReason("BAD_DTYPE"));
  request.clear_dtype();
  const auto exported = Call<TrainerService>(endpoint->grpc, &TrainerService::Stub::ExportModel, request);
  ASSERT_THAT(exported, IsOk());
  EXPECT_EQ(exported->path(), run.Path("exports/first"));
  EXPECT_THAT(FileSystem::Real()->List(run.Path("exports")).value(), ElementsAre("first"));
  EXPECT_THAT(FileSystem::Real()->List(exported->path()).value(),
              ElementsAre("adapter_config.json", "adapter_model.safetensors"));
  const Golden golden = ReadGolden("llama-linear");
  auto generated = RunCommand("syncopate", {"generate", base, "--adapter", exported->path(), "--ids",
                                            absl::StrJoin(golden.prompts[1], ","), "--max-new-tokens", "8", "--json"});
  ASSERT_THAT(generated, IsOk());
  ASSERT_EQ(JsonLines(generated->output).size(), 1u) << generated->output;
  EXPECT_EQ(JsonLines(generated->output)[0]["ids"].get<std::vector<int32_t>>(), golden.greedy[1]);
  const auto stopped = run.Ctl({"stop"});
  ASSERT_THAT(stopped, IsOk());
  EXPECT_EQ(stopped->code, 0) << stopped->output;
  ASSERT_THAT((*trained)->WaitExit(2 * kPatience), IsOk());
}

// What a run that must fail has printed.
std::string OutputOfFailed(const absl::StatusOr<std::unique_ptr<Process>>& process) {
  EXPECT_THAT(process, IsOk());
  if (!process.ok()) return "";
  const auto exit = (*process)->WaitExit(kPatience);
  EXPECT_THAT(exit, IsOk());
  EXPECT_NE(exit.ok() ? exit->code : 0, 0);
  return (*process)->Log();
}
std::string OutputOfFailedRun(const std::vector<std::string>& overrides) {
  RunHarness run(overrides);
  return OutputOfFailed(run.Run());
}

// Exchanges the byte at `back` from the end of a file for another.
void ChangeByte(const std::string& path, int back, char mask) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-back, std::ios::end);
  const char byte = static_cast<char>(file.get() ^ mask);
  file.seekp(-back, std::ios::end);
  file.put(byte);
  ASSERT_TRUE(file.good()) << path;
}

TEST(AdapterInputTest, WhatDoesNotFitIsRefusedByName) {
  EXPECT_THAT(OutputOfFailedRun({"lora.rank=100"}),
              AllOf(HasSubstr("lora.rank is 100"), HasSubstr("the smaller side of model.layers.0.self_attn.q_proj")));
  EXPECT_THAT(OutputOfFailedRun({"lora.rank=4", "lora.target_modules=query"}),
              AllOf(HasSubstr("lora.target_modules: \"query\" is no projection"), HasSubstr("q_proj")));
  EXPECT_THAT(
      OutputOfFailedRun({"lora.path=" + GoldenAdapterPath("llama-all"), "model.path=" + GoldenModelPath("mistral")}),
      HasSubstr("were the adapters made for another base?"));
}

TEST(AdapterInputTest, ATrainingThatSpoilsItsAdaptersEndsTheRunNamingOneAndReachesNobody) {
  RunHarness run(
      {"lora.rank=4", "run.steps=50", "eval.every_steps=0", "checkpoint.every_steps=1", "train.weight_decay=1e42"});
  EXPECT_THAT(OutputOfFailed(run.Run()),
              AllOf(HasSubstr("training has spoilt the weights of e1-s1"), HasSubstr("base_model.model.model.layers."),
                    HasSubstr("is not finite")));
  EXPECT_FALSE(std::filesystem::exists(run.Path("checkpoints/e1-s1")));
}

// The run's adapters on their own base and on one that differs in one number, wherever they are put together.
TEST(AdapterInputTest, AdaptersGoWithTheirOwnBaseAlone) {
  const std::string base = GoldenModelPath("llama-linear");
  RunHarness run({"model.path=" + base, "lora.rank=4", "run.steps=2", "checkpoint.every_steps=2", "run.rollouters=1",
                  "eval.every_steps=0", "data.batch_groups=4", "rollout.samples=4", "rollout.max_new_tokens=5",
                  "train.learning_rate=1e-12"});
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Run(), 0));
  const std::string other = run.temp_dir() + "/other";
  std::filesystem::copy(base, other);
  std::string weights;
  for (const auto& entry : std::filesystem::directory_iterator(other)) {
    if (entry.path().extension() == ".safetensors") weights = entry.path();
  }
  ASSERT_NO_FATAL_FAILURE(ChangeByte(weights, /*back=*/2, /*mask=*/1));

  const std::string checkpoint = run.Path("checkpoints/e1-s2"), merged = run.temp_dir() + "/merged";
  CommandResult exported = RunSyncopate({"export", checkpoint, merged, "--merged", "--base", other});
  EXPECT_EQ(exported.code, 1);
  EXPECT_THAT(exported.output, HasSubstr("is not the base that the adapters were trained on"));
  EXPECT_FALSE(std::filesystem::exists(merged));
  exported = RunSyncopate({"export", checkpoint, merged, "--merged", "--dtype", "float32"});
  EXPECT_EQ(exported.code, 0) << exported.output;
  const Golden golden = ReadGolden("llama-linear");
  const CommandResult generated = RunSyncopate(
      {"generate", merged, "--ids", absl::StrJoin(golden.prompts[1], ","), "--max-new-tokens", "8", "--json"});
  ASSERT_EQ(JsonLines(generated.output).size(), 1u) << generated.output;
  EXPECT_EQ(JsonLines(generated.output)[0]["ids"].get<std::vector<int32_t>>(), golden.greedy[1]);

  const std::string adapters = run.temp_dir() + "/adapters";
  exported = RunSyncopate({"export", checkpoint, adapters, "--adapter"});
  ASSERT_EQ(exported.code, 0) << exported.output;
  EXPECT_THAT(OutputOfFailedRun({"lora.path=" + adapters, "model.path=" + other}),
              AllOf(HasSubstr("lora.path: the adapters were trained on a base of digest"), HasSubstr("BASE_MISMATCH")));
  // A resume knows its base without the record of the model's files too, which runs of earlier builds do not have.
  EXPECT_THAT(OutputOfFailed(run.Resume({"run.steps=3", "model.path=" + other})), HasSubstr("FIXED_KEY"));
  ASSERT_TRUE(std::filesystem::remove(run.Path("state/trainer/model.json")));
  EXPECT_THAT(OutputOfFailed(run.Resume({"run.steps=3", "model.path=" + other})), HasSubstr("BASE_MISMATCH"));

  // The exponent of the last number becomes that of what is not finite.
  const std::string file = adapters + "/adapter_model.safetensors";
  std::string numbers = ReadFile(FileSystem::Real(), file, 1 << 24).value();
  numbers.replace(numbers.size() - 4, 4, std::string("\x00\x00\xc0\x7f", 4));
  std::ofstream(file, std::ios::binary) << numbers;
  EXPECT_THAT(OutputOfFailedRun({"lora.path=" + adapters, "model.path=" + base}), HasSubstr("is not finite"));
}

}  // namespace
}  // namespace syncopate::testing::adapters_test
