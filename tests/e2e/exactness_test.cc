// A strictly on-policy, distributed run is bit-identical to the synchronous loop in one process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/config/run_config.h"
#include "services/config/run_model.h"
#include "services/rpc/channel.h"
#include "synchronizer/plan/layout_text.h"
#include "synchronizer/plan/sync_plan.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::exactness_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSteps = 40;

class ExactnessTest : public ::testing::TestWithParam<int> {};

TEST_P(ExactnessTest, StrictlyOnPolicyEveryStepHasTheBitsOfTheSynchronousTwin) {
  RunHarness run({"staleness.max_staleness=0", "run.seed=3", absl::StrCat("run.rollouters=", GetParam()),
                  absl::StrCat("run.steps=", kSteps)});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto twin = TwinDigests(run.config(), run.overrides(), kSteps);
  ASSERT_THAT(twin, IsOk());
  ASSERT_EQ(twin->size(), static_cast<size_t>(kSteps));
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  EXPECT_EQ(run.Digests(), *twin);
  EXPECT_EQ(run.Summary()["rollouters"].size(), static_cast<size_t>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Rollouters, ExactnessTest, ::testing::Values(1, 2),
                         [](const auto& info) { return absl::StrCat("With", info.param, "Rollouters"); });

// Samples of several turns, with the environment's messages between them.
TEST(PlayExactnessTest, StrictlyOnPolicyARunWithTurnsHasTheBitsOfTheTwin) {
  constexpr int64_t kFewSteps = 12;
  RunHarness run({"staleness.max_staleness=0", "run.seed=3", "run.rollouters=2", "data.task=guess",
                  "environment.name=guess", "reward.name=environment", "rollout.max_turns=5",
                  "rollout.max_total_tokens=18", "model.max_position_embeddings=20",
                  absl::StrCat("run.steps=", kFewSteps)});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto twin = TwinDigests(run.config(), run.overrides(), kFewSteps);
  ASSERT_THAT(twin, IsOk());
  ASSERT_EQ(twin->size(), static_cast<size_t>(kFewSteps));
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  EXPECT_EQ(run.Digests(), *twin);
}

// The bytes that `world` ranks of a trainer send if each replica has two ranks.
class SourcesExactnessTest : public ::testing::TestWithParam<int> {
 protected:
  // The plan of the run's weight syncs, made here from its configuration.
  static synchronizer::SyncPlan MakePlan(const RunHarness& run, int world) {
    const v1::RunConfig config = config::LoadRunConfig(run.Path("config.resolved.yaml")).value();
    const model::ModelConfig shape = config::FindRunModel(config)->shape;
    const Manifest wire = config::MakeWireManifest(config, shape).value();
    return synchronizer::SyncPlan::Create(
               wire, synchronizer::BuildLayout(wire, absl::StrCat("units:", world, ":fp32")).value(),
               synchronizer::BuildLayout(wire, config::MakeRolloutLayout(config, shape)).value())
        .value();
  }
  // The receivers' parts of the weight syncs so far.
  static std::vector<v1::SyncRecord> Syncs(const RunHarness& run) {
    auto stub = v1::SynchronizerService::NewStub(rpc::MakeChannel(run.Endpoint("synchronizer")->grpc).value());
    v1::WatchSyncsRequest request;
    request.set_last(1000);
    grpc::ClientContext context;
    context.set_deadline(rpc::CallDeadline(kPatience));
    auto reader = stub->WatchSyncs(&context, request);
    std::vector<v1::SyncRecord> records;
    v1::WatchSyncsResponse response;
    while (reader->Read(&response)) records.push_back(response.record());
    EXPECT_TRUE(reader->Finish().ok());
    return records;
  }
};

TEST_P(SourcesExactnessTest, EachRankSendsItsPiecesAndTheRunHasTheBitsOfTheTwin) {
  constexpr int64_t kFewSteps = 8;
  const int world = GetParam();
  RunHarness run({"staleness.max_staleness=0", "run.seed=3", "run.rollouters=2", "eval.every_steps=0",
                  "rollout.tensor_parallel=2", absl::StrCat("trainer.world=", world),
                  absl::StrCat("run.steps=", kFewSteps)});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(4), IsOk()) << (*process)->Log();
  const std::vector<v1::SyncRecord> syncs = Syncs(run);
  auto twin = TwinDigests(run.config(), run.overrides(), kFewSteps);
  ASSERT_THAT(twin, IsOk());
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  EXPECT_EQ(run.Digests(), *twin);

  const synchronizer::SyncPlan plan = MakePlan(run, world);
  std::vector<int64_t> by_source(static_cast<size_t>(world), 0);
  for (const synchronizer::Copy& copy : plan.copies()) by_source[static_cast<size_t>(copy.source)] += copy.bytes;
  EXPECT_GE(syncs.size(), 6u) << "of three versions at two replicas";
  for (const v1::SyncRecord& sync : syncs) {
    if (sync.result() != "ok") continue;
    EXPECT_EQ(std::vector<int64_t>(sync.bytes_by_source().begin(), sync.bytes_by_source().end()), by_source);
    EXPECT_EQ(sync.bytes(), plan.bytes());
  }
  constexpr int64_t kSlots = 2, kSlack = 1 << 20;
  for (int rank = 0; rank < world; ++rank) {
    std::smatch match;
    const std::string log = run.Log(absl::StrCat("trainer-", rank));
    const std::regex line(absl::StrCat("trainer rank ", rank, " sends its shard \\(units:", world,
                                       ":fp32\\) from ([0-9]+) bytes of send slots"));
    ASSERT_TRUE(std::regex_search(log, match, line)) << log;
    const int64_t held = std::stoll(match[1]);
    EXPECT_GE(held, kSlots * by_source[static_cast<size_t>(rank)] / 2) << rank;  // ranks of a replica may share bytes
    EXPECT_LE(held, kSlots * by_source[static_cast<size_t>(rank)] + kSlack) << rank;
  }
  // A version has one digest, at the trainer and at every rank of every rollouter.
  auto events = RunCommand("syncopate", {"events", run.run_dir()});
  ASSERT_THAT(events, IsOk());
  std::map<std::string, std::set<std::string>> digests;
  size_t installs = 0;
  for (const Json& event : JsonLines(events->output)) {
    if (event["kind"] != "publish" && event["kind"] != "install") continue;
    installs += event["kind"] == "install" ? 1 : 0;
    digests[event["version"]].insert(event.at("digest").get<std::string>());
  }
  EXPECT_GE(installs, static_cast<size_t>(kFewSteps));
  for (const auto& [version, of_version] : digests) EXPECT_EQ(of_version.size(), 1u) << version;
}
INSTANTIATE_TEST_SUITE_P(TrainerRanks, SourcesExactnessTest, ::testing::Values(2, 3));
// The emulation of an asynchronous run whose tokens all have the same age.
TEST(ExactnessTest, ATwinWithALagTrainsTokensOfThatAge) {
  constexpr int64_t kLag = 3, kFewSteps = 8;
  RunHarness run(
      {"staleness.max_staleness=3", "run.seed=3", "eval.every_steps=2", absl::StrCat("run.steps=", kFewSteps)});
  auto twin = [&run](const std::vector<std::string>& first) {
    std::vector<std::string> words = first;
    words.push_back(run.config());
    for (const std::string& word : run.overrides()) words.push_back(word);
    return RunCommand("syncopate-twin", words, 2 * kPatience);
  };
  const auto plain = twin({}), lagging = twin({"--lag", absl::StrCat(kLag)}), beyond = twin({"--lag", "4"});
  for (const auto& result : {plain, lagging, beyond}) ASSERT_THAT(result, IsOk());
  ASSERT_EQ(plain->code + lagging->code, 0) << plain->output << lagging->output;
  EXPECT_EQ(beyond->code, 2);
  EXPECT_THAT(beyond->output, ::testing::HasSubstr("staleness.max_staleness"));
  const std::vector<Json> now = JsonLines(plain->output), old = JsonLines(lagging->output);
  ASSERT_EQ(now.size(), static_cast<size_t>(kFewSteps));
  ASSERT_EQ(old.size(), static_cast<size_t>(kFewSteps));
  EXPECT_EQ(old[0]["weights_digest"], now[0]["weights_digest"]) << "both runs begin with the same weights";
  EXPECT_NE(old[1]["weights_digest"], now[1]["weights_digest"]);
  std::vector<int64_t> evaluated;
  for (int64_t step = 1; step <= kFewSteps; ++step) {
    const Json& line = old[static_cast<size_t>(step - 1)];
    EXPECT_EQ(line["oldest_age"], std::min(step - 1, kLag)) << line;
    EXPECT_EQ(now[static_cast<size_t>(step - 1)]["oldest_age"], 0);
    if (line.contains("eval_step")) evaluated.push_back(line["eval_step"]);
  }
  EXPECT_THAT(evaluated, ::testing::ElementsAre(2, 4, kFewSteps - kLag));
}

// On the CPU, the bits do not depend on the number of rows of a pass, so the twin need not have the same number.
TEST(ExactnessTest, ARunWithDeterministicRolloutersHasTheBitsOfATwinWithout) {
  constexpr int64_t kFewSteps = 8;
  RunHarness run({"staleness.max_staleness=0", "run.seed=3", "run.rollouters=2", "rollout.deterministic=true",
                  absl::StrCat("run.steps=", kFewSteps)});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  std::vector<std::string> plain = run.overrides();
  plain.emplace_back("rollout.deterministic=false");
  auto twin = TwinDigests(run.config(), plain, kFewSteps);
  ASSERT_THAT(twin, IsOk());
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  EXPECT_EQ(run.Digests(), *twin);
}

// The device has memory for a third of the running sequences, so sequences are preempted, and host memory for some of
// the preempted ones. The twin has memory for all.
TEST(ExactnessTest, ARunWhoseAnswersAreSwappedToHostMemoryHasTheBitsOfATwinWithRoomForAll) {
  constexpr int64_t kFewSteps = 6;
  const std::vector<std::string> common = {"staleness.max_staleness=0",
                                           "run.seed=3",
                                           "data.length=20",
                                           "rollout.max_new_tokens=42",
                                           "model.max_position_embeddings=64",
                                           "data.batch_groups=6",
                                           "run.rollouters=1",
                                           absl::StrCat("run.steps=", kFewSteps)};
  std::vector<std::string> tight = common;
  tight.insert(tight.end(), {"rollout.kv_tokens=1024", "rollout.host_kv_memory=0.001"});
  RunHarness run(tight);
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto swaps = [&] {
    auto endpoint = run.Endpoint("rollouter");
    auto text = endpoint.ok() ? HttpGet(endpoint->metrics, "/metrics") : endpoint.status();
    if (!text.ok() || !absl::StrContains(*text, "syncopate_preemptions_total{kind=\"swap\"} ")) return false;
    return !absl::StrContains(*text, "syncopate_preemptions_total{kind=\"swap\"} 0\n");
  };
  EXPECT_TRUE(Eventually(kPatience, swaps));
  auto twin = TwinDigests(run.config(), common, kFewSteps);
  ASSERT_THAT(twin, IsOk());
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  EXPECT_EQ(run.Digests(), *twin);
  EXPECT_THAT(run.Log("rollouter-0"), HasSubstr("preempted sequences are swapped to host memory"));
}

// All parts that may leave the device do so at every step. The trained weights are the same, and the durations of the
// moves are in each line.
TEST(ExactnessTest, AStateThatLeavesTheDeviceBetweenStepsHasTheBitsOfOneThatStays) {
  constexpr int64_t kFew = 8;
  const std::vector<std::string> common = {"staleness.max_staleness=0", "run.seed=3", "train.updates_per_batch=2",
                                           "train.kl_coef=0.01", absl::StrCat("run.steps=", kFew)};
  for (const std::vector<std::string>& offload :
       {std::vector<std::string>{},
        {"train.offload_params=true", "train.offload_optimizer_for_logprob=true", "train.offload_reference=true",
         "train.empty_cache_after_update=always"}}) {
    std::vector<std::string> overrides = common;
    overrides.insert(overrides.end(), offload.begin(), offload.end());
    RunHarness run(overrides);
    auto process = run.Run();
    ASSERT_THAT(process, IsOk());
    auto twin = TwinDigests(run.config(), common, kFew);
    ASSERT_THAT(twin, IsOk());
    auto exit = (*process)->WaitExit(2 * kPatience);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(exit->code, 0) << (*process)->Log();
    EXPECT_EQ(run.Digests(), *twin);
    int64_t lines = 0;
    for (const Json& line : run.Records("step")) {
      ++lines;
      const bool leaves = !offload.empty();
      for (const char* part : {"parameters", "optimizer", "reference"}) {
        const double load = line[absl::StrCat(part, "_load_seconds")];
        const double offloading = line[absl::StrCat(part, "_offload_seconds")];
        EXPECT_EQ(load > 0.0, leaves) << part;
        EXPECT_EQ(offloading > 0.0, leaves) << part;
        EXPECT_TRUE(leaves || (load == 0.0 && offloading == 0.0));
        EXPECT_EQ(line[absl::StrCat(part, "_moved_bytes")].get<int64_t>() > 0, leaves);
      }
      EXPECT_EQ(line["parameters_device_bytes"].get<int64_t>() == 0, leaves);
      EXPECT_EQ(line["reference_device_bytes"].get<int64_t>() == 0, leaves);
      EXPECT_EQ(line["cache_flushes"].get<int64_t>() > 0, leaves);
      if (!leaves) continue;
      EXPECT_EQ(line["optimizer_moved_bytes"].get<int64_t>(), 2 * line["optimizer_device_bytes"].get<int64_t>());
    }
    EXPECT_EQ(lines, kFew);
  }
}

TEST(ExactnessTest, AnotherSeedHasOtherBits) {
  auto digest_of = [](int seed) {
    RunHarness run;
    auto twin = TwinDigests(run.config(), {absl::StrCat("run.seed=", seed)}, 1);
    return twin.ok() ? (*twin)[1] : twin.status().ToString();
  };
  const std::string three = digest_of(3);
  EXPECT_EQ(three, digest_of(3));
  EXPECT_NE(three, digest_of(4));
}

}  // namespace
}  // namespace syncopate::testing::exactness_test
