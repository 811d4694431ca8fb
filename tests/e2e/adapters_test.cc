// Runs that train adapters: the base goes to those who lack it, adapters to all, and both are what the twin computes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/decoder_spec.h"
#include "model/model_config.h"
#include "syncopate/v1/trainer.grpc.pb.h"
#include "tests/support/golden_models.h"
#include "tests/support/run_harness.h"
#include "tests/support/small_model.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using v1::TrainerService;

struct WireBytes {
  int64_t base = 0;
  int64_t padded_base = 0;  // with the gaps of alignment, which may travel too
  int64_t adapters = 0;
};

// Of the example's model with adapters of this rank, whose tensors leave no gaps.
WireBytes CountWireBytes(int64_t rank) {
  const Manifest manifest = *model::MakeManifest(WithAdapters(SmallModel(), rank), DType::kFloat32);
  WireBytes bytes;
  for (const TensorSpec& spec : manifest.tensors()) {
    (model::IsAdapterName(spec.name) ? bytes.adapters : bytes.base) += spec.NumBytes();
  }
  bytes.padded_base = manifest.arena_bytes() - bytes.adapters;
  return bytes;
}

void ExpectEnd(absl::StatusOr<std::unique_ptr<Process>> process, int code) {
  ASSERT_THAT(process, IsOk());
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, code) << (*process)->Log();
}

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

// Daemons that are started and ended one by one while a run goes on, and the syncs that this leads to.
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
  // Good syncs of a replica, in order, of versions above `after`.
  std::vector<Json> GetSyncs(const std::string& replica, int64_t after) {
    auto printed = run_.Ctl({"syncs", "--last", "1000", "--json"});
    EXPECT_THAT(printed, IsOk());
    std::vector<Json> syncs;
    if (!printed.ok()) return syncs;
    for (const Json& line : JsonLines(printed->output)) {
      const bool good = line["result"] == "ok" || line["result"] == "relabelled";
      if (good && line["replica_id"] == replica && GetStep(line) > after) syncs.push_back(line);
    }
    return syncs;
  }
  static int64_t GetNumber(const Json& value) {
    return value.is_string() ? std::stoll(value.get<std::string>()) : value.get<int64_t>();
  }
  static int64_t GetStep(const Json& line) { return GetNumber(line["version"]["step"]); }
  static int64_t GetBytes(const Json& line, const char* kind) {
    const Json& bytes = line["bytes_by_kind"];
    return bytes.contains(kind) ? GetNumber(bytes[kind]) : 0;
  }
  // The next `count` good syncs of a replica after those that there are.
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
  std::map<std::string, int64_t> seen_;  // the step of the newest sync that was looked at
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

// A checkpoint is a PEFT directory; another base under it is refused, as is what cannot be exported.
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

// Each of two ranks copies its shard of the adapters between two steps, and rank 0 writes one directory of them.
TEST(AdaptersTest, WhatTwoRanksTrainGoesOutWhileTheyTrain) {
  const std::string base = GoldenModelPath("llama-linear");
  // Steps this small change nothing that greedy tokens show.
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

}  // namespace
}  // namespace syncopate::testing
