#include "services/config/run_config.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/philox.h"
#include "base/status.h"
#include "services/config/peer_names.h"
#include "services/config/schema.h"

namespace syncopate::config {
namespace {

using google::protobuf::util::MessageDifferencer;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::vector<std::string> Problems(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  std::vector<std::string> lines;
  for (const ConfigProblem& problem : ParseRunConfig(yaml, "f.yaml", overrides).problems) {
    lines.push_back(problem.ToString());
  }
  return lines;
}

TEST(RunConfigTest, AnEmptyTextIsAllDefaults) {
  ParsedRunConfig parsed = ParseRunConfig("", "f.yaml");
  EXPECT_TRUE(parsed.problems.empty()) << ToString(parsed.problems);
  EXPECT_EQ(parsed.config.data().task(), "reverse");
  EXPECT_EQ(parsed.config.staleness().max_staleness(), 4);
  EXPECT_TRUE(Problems("# nothing but a comment\n").empty());
  EXPECT_TRUE(Problems("run:\ntrain:\n").empty());
}

TEST(RunConfigTest, FileOverridesDefaultsAndOverridesOverrideTheFileTheLastOneWinning) {
  ParsedRunConfig parsed = ParseRunConfig("run: {steps: 7, name: a}\n", "f.yaml", {"run.steps=8", "run.steps=9"});
  ASSERT_TRUE(parsed.problems.empty()) << ToString(parsed.problems);
  EXPECT_EQ(parsed.config.run().steps(), 9);
  EXPECT_EQ(parsed.config.run().name(), "a");
}

TEST(RunConfigTest, AnOverrideMayHoldAnEqualsSignOrNothing) {
  ParsedRunConfig parsed = ParseRunConfig("run: {dir: x}\n", "f.yaml", {"run.dir=a=b", "run.id="});
  ASSERT_TRUE(parsed.problems.empty()) << ToString(parsed.problems);
  EXPECT_EQ(parsed.config.run().dir(), "a=b");
  EXPECT_EQ(parsed.config.run().id(), "");
}

TEST(RunConfigTest, AnUnknownKeyIsReportedWithItsLineAndTheNearestKnownKey) {
  EXPECT_THAT(Problems("train:\n  beta1: 0.9\n  learnig_rate: 0.1\n"),
              ElementsAre("f.yaml:3: train.learnig_rate = 0.1: expected a known key; nearest known key: "
                          "train.learning_rate"));
  EXPECT_THAT(Problems("", {"train.lr=1"}), ElementsAre(HasSubstr("command line: train.lr = 1: expected a known key")));
}

TEST(RunConfigTest, AKeyOfAnotherProgramIsReportedWithWhatItIsCalledHere) {
  EXPECT_THAT(Problems("algorithm: {adv_estimator: grpo}\n"),
              ElementsAre("f.yaml:1: algorithm.adv_estimator = grpo: expected a known key; here it is called "
                          "train.advantage"));
  EXPECT_THAT(Problems("actor_rollout_ref:\n  actor:\n    ppo_epochs: 2\n  rollout: {n: 8}\n"),
              ElementsAre("f.yaml:3: actor_rollout_ref.actor.ppo_epochs = 2: expected a known key; here it is called "
                          "train.updates_per_batch",
                          "f.yaml:4: actor_rollout_ref.rollout.n = 8: expected a known key; here it is called "
                          "rollout.samples"));
  EXPECT_THAT(Problems("", {"num_generations=8"}), ElementsAre(HasSubstr("here it is called rollout.samples")));
  EXPECT_THAT(Problems("", {"train.optim.lr=1"}), ElementsAre(HasSubstr("nearest known key: train.learning_rate")));
  EXPECT_THAT(Problems("", {"train.beta=1"}), ElementsAre(HasSubstr("nearest known key: train.beta1")));
  EXPECT_THAT(Problems("", {"trainer.logger=wandb"}),
              ElementsAre("command line: trainer.logger = wandb: expected a known key"));
}

TEST(RunConfigTest, EveryKeyOfAnotherProgramIsOneOfOursHere) {
  const ConfigSchema schema;
  for (const PeerNames& entry : AllPeerNames()) {
    EXPECT_NE(schema.Find(entry.key), nullptr) << entry.key;
    for (const std::string& names : entry.names) {
      for (const std::string& name : std::vector<std::string>(absl::StrSplit(names, ' ', absl::SkipEmpty()))) {
        EXPECT_EQ(TranslatePeerKey(name), entry.key) << "two keys for " << name;
      }
    }
  }
}

TEST(RunConfigTest, AListMeansTheSameOnTheCommandLineAndInAFile) {
  auto files = [](const std::string& yaml, const std::vector<std::string>& overrides) {
    const ParsedRunConfig parsed = ParseRunConfig(yaml, "f.yaml", overrides);
    return parsed.config.data().files();
  };
  for (const char* list : {"[a.jsonl, b.jsonl * 2]", "['a.jsonl', \"b.jsonl * 2\"]", "a.jsonl, b.jsonl * 2"}) {
    const std::string quoted = list[0] == '[' ? list : absl::StrCat("\"", list, "\"");
    EXPECT_EQ(files(absl::StrCat("data: {files: ", quoted, "}"), {}), "a.jsonl, b.jsonl * 2") << list;
    EXPECT_EQ(files("", {absl::StrCat("data.files=", list)}), "a.jsonl, b.jsonl * 2") << list;
  }
  EXPECT_EQ(files("data: {files: [a]}", {"data.files=[]"}), "");
  EXPECT_EQ(files("", {"data.files=[a.jsonl"}), "[a.jsonl") << "a name that begins so";
}

TEST(RunConfigTest, AnUnknownSectionReportsEachOfItsKeys) {
  EXPECT_THAT(Problems("stalness:\n  max_staleness: 2\n"),
              ElementsAre("f.yaml:2: stalness.max_staleness = 2: expected a known key; nearest known key: "
                          "staleness.max_staleness"));
  EXPECT_THAT(Problems("stalness: 3\n"), ElementsAre("f.yaml:1: stalness = 3: expected a known key; nearest known "
                                                     "key: staleness"));
}

TEST(RunConfigTest, AWrongValueIsReportedWithWhatWasExpected) {
  struct Case {
    const char* yaml;
    const char* problem;
  };
  const Case cases[] = {
      {"data: {length: four}", "f.yaml:1: data.length = four: expected an integer from 1 to 512"},
      {"data: {length: 1.5}", "data.length = 1.5: expected an integer from 1 to 512"},
      {"data: {length: 0}", "data.length = 0: expected an integer from 1 to 512"},
      {"data: {length: 513}", "data.length = 513: expected an integer from 1 to 512"},
      {"data: {length: \"4\"}", "data.length = \"4\": expected an integer from 1 to 512"},
      {"data: {length: }", "data.length = (nothing): expected an integer from 1 to 512"},
      {"data: {length: [4]}", "data.length = a list: expected an integer from 1 to 512"},
      {"data: {length: {a: 4}}", "data.length = a map: expected an integer from 1 to 512"},
      {"run: {seed: 99999999999999999999}",
       "run.seed = 99999999999999999999: expected an integer of at least 0, at most 9223372036854775807"},
      {"run: {seed: 9223372036854775808}", "expected an integer of at least 0, at most 9223372036854775807"},
      {"train: {adam_eps: 1e400}", "train.adam_eps = 1e400: expected a number of at least 1e-30, at most 1.79e308"},
      {"model: {hidden_size: 9223372036854775807}", "expected an integer from 1 to 1048576"},
      {"run: {resume: yes}", "run.resume = yes: expected true or false"},
      {"train: {learning_rate: fast}", "train.learning_rate = fast: expected a number from 1e-12 to 1"},
      {"train: {learning_rate: .nan}", "train.learning_rate = .nan: expected a number from 1e-12 to 1"},
      {"train: {learning_rate: nan}", "train.learning_rate = nan: expected a number from 1e-12 to 1"},
      {"train: {mis_high: inf}", "train.mis_high = inf: expected a number of at least 1"},
      {"reward: {name: sparse}",
       "reward.name = \"sparse\": expected a reward or a sum of rewards; no reward is named 'sparse'; there are dense"},
      {"sync: {deadline: 10}", "sync.deadline = 10: expected a duration above zero with a unit"},
      {"sync: {deadline: \"\"}", "sync.deadline = \"\": expected a duration above zero with a unit"},
      {"run: 5", "f.yaml:1: run = 5: expected keys below this section"},
      {"run: [1]", "f.yaml:1: run = a list: expected keys below this section"},
  };
  for (const Case& c : cases) EXPECT_THAT(Problems(c.yaml), ElementsAre(HasSubstr(c.problem))) << c.yaml;
}

TEST(RunConfigTest, ARewardThatCannotBeGivenIsReportedByWhatItLacks) {
  const std::pair<const char*, const char*> cases[] = {
      {"reward: {name: dense + 0.5*}",
       "reward.name = \"dense + 0.5*\": expected a reward or a sum of rewards; no reward is"},
      {"reward: {name: math}", "expected dense, exact, overlong or environment, as math reads text"},
      {"reward: {name: overlong}", "at least 1: the number of tokens over which overlong falls"},
      {"reward: {overlong_buffer: 6}", "expected at most rollout.max_new_tokens 5"},
      {"reward: {pattern: '(a'}", "expected a regular expression; the regular expression (a is wrong at byte 2"},
      {"reward: {url: 'ftp://x'}", "expected an address that begins with http:// or https://"},
      {"environment: {address: 'unix:'}", "expected unix: and the path of a socket"},
      {"environment: {address: '1.2.3.4:5'}", "expected a socket or a loopback address"},
      {"environment: {address: '127.0.0.1:0'}", "expected unix:PATH, or host:port"},
  };
  for (const auto& [yaml, problem] : cases) EXPECT_THAT(Problems(yaml), ElementsAre(HasSubstr(problem))) << yaml;
  EXPECT_THAT(Problems("reward: {name: 2*dense + -1*overlong, overlong_buffer: 2}"), IsEmpty());
  EXPECT_THAT(Problems("reward: {name: format}"),
              Contains(HasSubstr("a regular expression, which format matches answers with")));
  EXPECT_THAT(
      Problems("reward: {name: http, url: 'http://x', timeout: 5m}"),
      Contains(HasSubstr("expected reward.attempts 3 x reward.timeout to be less than data.lease_timeout 10m")));
  EXPECT_THAT(Problems("reward: {timeout: 5m}"), IsEmpty()) << "no remote scorer is called";
  EXPECT_THAT(Problems("reward: {name: 'python:mine'}"),
              Contains(HasSubstr("the command of the worker that has python:mine")));
}

TEST(RunConfigTest, AKeySetTwiceInTheFileIsReportedWithBothLines) {
  EXPECT_THAT(Problems("run:\n  steps: 5\n  steps: 6\n"),
              ElementsAre("f.yaml:3: run.steps = 6: expected each key once; it is set at f.yaml:2 already"));
  EXPECT_THAT(Problems("run:\n  steps: 5\ndata:\n  length: 4\nrun:\n  steps: 6\n"),
              ElementsAre(HasSubstr("f.yaml:6: run.steps = 6: expected each key once")));
}

TEST(RunConfigTest, TextThatIsNoConfigurationIsReportedNotThrown) {
  EXPECT_THAT(Problems("run: {steps: 5\n"), ElementsAre(HasSubstr("expected YAML, but: ")));
  EXPECT_THAT(Problems("run:\n  steps: 1\n\tseed: 3\n"),
              ElementsAre("f.yaml:3: expected blanks before the key, not a tab, which YAML does not allow"));
  EXPECT_THAT(Problems("run:\n  steps:\t1  # a tab is right there\n\t\n\t# and here\n"), IsEmpty());
  EXPECT_THAT(Problems("a: b: c\n"), ElementsAre(HasSubstr("f.yaml:1")));
  EXPECT_THAT(Problems("- 1\n- 2\n"), ElementsAre(HasSubstr("expected sections such as `run:`")));
  EXPECT_THAT(Problems("just words\n"), ElementsAre(HasSubstr("expected sections such as `run:`")));
  EXPECT_THAT(Problems("run: {steps: 1}\n---\nrun: {steps: 2}\n"), ElementsAre(HasSubstr("one YAML document")));
  // A parser that reads all documents would see documents without end.
  EXPECT_THAT(Problems("!,,,,!bina"), Not(IsEmpty()));
  EXPECT_THAT(Problems("", {"steps"}), ElementsAre(HasSubstr("expected an override such as")));
  EXPECT_THAT(Problems("", {"=5"}), ElementsAre(HasSubstr("expected an override such as")));
  EXPECT_THAT(Problems("", {"run=5"}), ElementsAre("command line: run = 5: expected keys below this section"));
}

// With aliases, a few lines can make a map that contains itself, or very many other maps.
TEST(RunConfigTest, AMapWithoutEndIsReportedAsAMap) {
  std::string grows = "run:\n  steps: &a {x: 1, y: 2, z: 3}\n";
  for (char next = 'b'; next <= 'p'; ++next) {
    const char before = static_cast<char>(next - 1);
    grows += absl::StrFormat("  %c: &%c {x: *%c, y: *%c, z: *%c}\n", next, next, before, before, before);
  }
  for (const std::string& yaml : {std::string("run: &a\n  steps: {in: *a}"), grows}) {
    const ParsedRunConfig parsed = ParseRunConfig(yaml, "run.yaml");
    ASSERT_FALSE(parsed.problems.empty());
    EXPECT_LT(parsed.problems.size(), 5000u);
  }
}

TEST(RunConfigTest, AllProblemsAreReportedAtOnceFileThenOverridesThenCombinations) {
  std::vector<std::string> problems = Problems(
      "run:\n  stepz: 5\n  resume: maybe\ndata:\n  length: -1\nsync:\n  every_steps: 9\n", {"rollout.samples=x"});
  EXPECT_THAT(problems, ElementsAre(HasSubstr("run.stepz"), HasSubstr("run.resume"), HasSubstr("data.length"),
                                    HasSubstr("rollout.samples"), HasSubstr("sync.every_steps = 9")));
}

TEST(RunConfigTest, ACombinationIsNotReportedForAKeyWhoseOwnValueIsWrong) {
  EXPECT_THAT(Problems("sync: {every_steps: 6}\nstaleness: {max_staleness: low}\n"),
              ElementsAre(HasSubstr("staleness.max_staleness = low")));
}

TEST(RunConfigTest, ACombinationIsBlamedOnTheOverrideElseTheFileElseTheFirstKey) {
  EXPECT_THAT(
      Problems("data:\n  length: 40\n", {"rollout.max_new_tokens=41"}),
      ElementsAre(HasSubstr("command line: rollout.max_new_tokens = 41: expected model.max_position_embeddings to "
                            "be at least 83")));
  EXPECT_THAT(
      Problems("data:\n  length: 9\nrollout:\n  max_new_tokens: 10\n"),
      ElementsAre(HasSubstr("f.yaml:2: data.length = 9: expected model.max_position_embeddings to be at least 21: "
                            "a prompt of 11 tokens and 10 new ones; it is 16")));
  EXPECT_THAT(Problems("", {"eval.prompts=1"}),
              ElementsAre("command line: eval.prompts = 1: expected eval.show_samples to be at most eval.prompts 1; it "
                          "is 4"));
  // A problem of several keys is attributed to none of them.
  EXPECT_THAT(Problems("", {"security.tls_key=k"}),
              ElementsAre("command line: security.tls_key = \"k\": expected all three files, or none of them"));
}

TEST(RunConfigTest, TheExampleReadsWithoutProblems) {
  auto config = LoadRunConfig(std::string(SYNCOPATE_SOURCE_DIR) + "/deploy/examples/reverse.yaml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->run().name(), "reverse");
  EXPECT_EQ(config->run().rollouters(), 2);
  EXPECT_EQ(config->data().task(), "reverse");
  EXPECT_EQ(config->data().length(), 4);
  EXPECT_EQ(config->data().alphabet(), 8);
  EXPECT_EQ(config->data().batch_groups(), 16);
  EXPECT_EQ(config->rollout().samples(), 16);
  EXPECT_EQ(config->reward().name(), "dense");
}

TEST(RunConfigTest, DamagedTextNeverCrashesAndIsNeverHalfRead) {
  std::ifstream file(std::string(SYNCOPATE_SOURCE_DIR) + "/deploy/examples/reverse.yaml");
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  const std::string pool = whole + "{}[]&*!|>'\"%@`\t\xff" + '\0';
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    std::string damaged = whole.substr(0, Philox4x32(seed, 0)[0] % (whole.size() + 1));
    for (uint64_t i = 1; i <= Philox4x32(seed, 0)[1] % 8; ++i) {
      auto draw = Philox4x32(seed, i);
      damaged.insert(draw[0] % (damaged.size() + 1), 1, pool[draw[1] % pool.size()]);
    }
    ParsedRunConfig parsed = ParseRunConfig(damaged, "f.yaml");
    if (!parsed.problems.empty()) continue;
    // An accepted configuration means the same when it is written out in full.
    ParsedRunConfig again = ParseRunConfig(ToYaml(parsed.config), "f.yaml");
    EXPECT_TRUE(again.problems.empty() && MessageDifferencer::Equals(parsed.config, again.config)) << damaged;
  }
  EXPECT_THAT(Problems(std::string(200000, '[')), ElementsAre(HasSubstr("expected YAML")));
}

TEST(RunConfigTest, AFileThatCannotBeReadIsNamed) {
  auto missing = LoadRunConfig("/nowhere/reverse.yaml");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrorReason(missing.status()), "CONFIG_NOT_READABLE");
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/nowhere/reverse.yaml"));
  EXPECT_EQ(ErrorReason(LoadRunConfig("/tmp").status()), "CONFIG_NOT_READABLE");
}

TEST(RunConfigTest, ABadFileGivesOneStatusWithAllProblems) {
  std::string path = testing::TempDir() + "/bad.yaml";
  std::ofstream(path) << "run:\n  steps: -1\ntrain:\n  betta1: 0\n";
  auto config = LoadRunConfig(path, {"data.length=x"});
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReason(config.status()), "BAD_CONFIG");
  std::string message(config.status().message());
  EXPECT_THAT(message, HasSubstr(path + ":2: run.steps = -1"));
  EXPECT_THAT(message, HasSubstr("nearest known key: train.beta1"));
  EXPECT_THAT(message, HasSubstr("command line: data.length = x"));
}

// Returns "learning rate, new tokens, train.device, rollout.device", or the problems.
std::string Automatic(const std::vector<std::string>& overrides, const Surroundings& around = {},
                      const std::string& yaml = "") {
  const ParsedRunConfig parsed =
      ParseRunConfig(yaml, "f.yaml", overrides, [&](const v1::RunConfig&) { return around; });
  if (!parsed.problems.empty()) return ToString(parsed.problems);
  return absl::StrCat(parsed.config.train().learning_rate(), " ", parsed.config.rollout().max_new_tokens(), " ",
                      parsed.config.train().device(), " ", parsed.config.rollout().device());
}

TEST(RunConfigTest, WhatNobodySetsIsWhatTheTaskNeeds) {
  EXPECT_EQ(Automatic({}), "0.002 5 cpu cpu");
  EXPECT_EQ(Automatic({"data.length=6"}), "0.002 7 cpu cpu");
  EXPECT_EQ(Automatic({"data.task=add"}), "0.002 6 cpu cpu");
  EXPECT_EQ(Automatic({"train.learning_rate=0", "rollout.max_new_tokens=auto"}), "0.002 5 cpu cpu");
  EXPECT_EQ(Automatic({}, {}, "train: {learning_rate: auto}\nrollout: {max_new_tokens: \"auto\"}\n"),
            "0.002 5 cpu cpu");
  EXPECT_EQ(Automatic({"train.learning_rate=0.1", "rollout.max_new_tokens=9"}), "0.1 9 cpu cpu");
  EXPECT_THAT(Automatic({"train.beta1=auto"}), HasSubstr("expected a number from 0 to 0.999999"));
}

TEST(RunConfigTest, WhatNobodySetsBesideAModelIsWhatTrainedModelsNeed) {
  EXPECT_EQ(Automatic({"model.path=m"}), "1e-06 1024 auto auto");
  EXPECT_EQ(Automatic({"model.path=m", "data.files=a"}, {.longest_context = 32768}), "1e-06 1024 auto auto");
  EXPECT_EQ(Automatic({"model.path=m", "data.files=a"}, {.longest_context = 1500}), "1e-06 476 auto auto");
  EXPECT_EQ(Automatic({"model.path=m", "data.files=a", "data.max_prompt_tokens=100", "model.context_length=612"},
                      {.longest_context = 1500}),
            "1e-06 512 auto auto");
  EXPECT_THAT(Automatic({"model.path=m", "data.files=a", "model.context_length=1000"}),
              HasSubstr("model.context_length = 1000: expected 0, or at least 1025"));
  EXPECT_EQ(Automatic({"model.path=m", "train.device=cpu", "rollout.device=cuda:3", "train.learning_rate=1e-3",
                       "rollout.max_new_tokens=7"}),
            "0.001 7 cpu cuda:3");
}

TEST(RunConfigTest, AutoIsOneDeviceForAllProcessesWhereTheGpusAreCounted) {
  const std::vector<std::string> run = {"model.path=m", "run.rollouters=2"};
  EXPECT_EQ(Automatic(run, {.gpus = 0}), "1e-06 1024 cpu cpu");
  EXPECT_EQ(Automatic(run, {.gpus = 3}), "1e-06 1024 cuda cuda");
  EXPECT_THAT(Automatic(run, {.gpus = 2}),
              HasSubstr("1 for the trainer and 2 for rollouters, and this machine has 2; set run.rollouters to fewer; "
                        "or name the devices: train.device=cuda:0 rollout.device=cuda:0"));
  EXPECT_THAT(Automatic({"model.path=m", "run.rollouters=1"}, {.gpus = 1}), Not(HasSubstr("to fewer")));
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), run.begin(), run.end());
    return more;
  };
  EXPECT_EQ(Automatic(with({"train.device=cpu"}), {.gpus = 2}), "1e-06 1024 cpu cuda");
  EXPECT_EQ(Automatic(with({"rollout.device=cpu"}), {.gpus = 1}), "1e-06 1024 cuda cpu");
  EXPECT_EQ(Automatic(with({"train.objective=sft"}), {.gpus = 1}), "1e-06 1024 cuda cuda") << "no rollouters";
  EXPECT_THAT(Automatic(with({"rollout.tensor_parallel=2"}), {.gpus = 4}), HasSubstr("4 for rollouters"));
  EXPECT_EQ(Automatic(with({"run.share_gpu=true", "trainer.world=2"}), {.gpus = 2}), "1e-06 1024 cuda cuda")
      << "they take turns";
  EXPECT_THAT(Automatic(with({"run.share_gpu=true", "rollout.tensor_parallel=2"}), {.gpus = 2}),
              HasSubstr("4 for rollouters"));
  EXPECT_EQ(Automatic(with({"train.device=cuda:0", "rollout.device=cuda:0"}), {.gpus = 1}), "1e-06 1024 cuda:0 cuda:0")
      << "configured devices may be shared";
  EXPECT_EQ(Automatic({"train.device=auto"}, {.gpus = 4}), "0.002 5 cuda cpu") << "also without a model";
  EXPECT_EQ(Automatic({}, {.gpus = 4}), "0.002 5 cpu cpu") << "the default of built-in tasks";
  // The rules are checked on the resolved values.
  EXPECT_THAT(Automatic(with({"sync.transport=ipc"}), {.gpus = 0}), HasSubstr("ipc goes from GPU to GPU"));
  EXPECT_EQ(Automatic(with({"sync.transport=ipc"}), {.gpus = 3}), "1e-06 1024 cuda cuda");
}

TEST(RunConfigTest, AResumeKeepsWhatTheRunHadUnlessItIsSet) {
  const Surroundings kept = {.longest_context = 4096,
                             .kept = {{{"train.learning_rate", "5e-06"},
                                       {"rollout.max_new_tokens", "300"},
                                       {"train.device", "cuda"},
                                       {"rollout.device", "cpu"}}},
                             .gpus = 0};
  EXPECT_EQ(Automatic({"model.path=m"}, kept), "5e-06 300 cuda cpu");
  EXPECT_EQ(Automatic({"model.path=m", "train.device=auto", "train.learning_rate=1e-5"}, kept), "1e-05 300 cpu cpu");
  const Surroundings old = {.kept = {{{"run.seed", "3"}}}};
  EXPECT_EQ(Automatic({"model.path=m"}, old), "0.002 5 cpu cpu") << "the former defaults";
}

TEST(RunConfigTest, AResumeFindsWhatTheRunHadInItsDirectory) {
  const std::string dir = testing::TempDir() + "/kept_values";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  const std::string file = dir + "/mine.yaml";
  std::ofstream(file) << "model: {path: m}\nrun: {dir: " << dir << "/run, resume: true}\n";
  auto load = [&] {
    const auto config = LoadRunConfig(file);
    return config.ok() ? absl::StrCat(config->train().learning_rate(), " ", config->rollout().max_new_tokens(), " ",
                                      config->train().device())
                       : config.status().ToString();
  };
  EXPECT_EQ(load(), "1e-06 1024 auto") << "nothing is there to be resumed";
  std::filesystem::create_directories(dir + "/run/state/trainer");
  EXPECT_EQ(load(), "1e-06 1024 auto") << "no trainer has begun";
  std::ofstream(dir + "/run/state/trainer/identity.json") << "{}";
  EXPECT_EQ(load(), "0.002 5 cpu") << "a run without a record is older than these values";
  std::ofstream(dir + "/run/config.resolved.yaml") << "train: {learning_rate: 0.01, device: \"cuda:1\"}\n";
  EXPECT_EQ(load(), "0.01 5 cuda:1");
  std::ofstream(dir + "/run/state/trainer/config.json")
      << R"({"train.learning_rate": "3e-06", "rollout.max_new_tokens": "77", "train.device": "\"cuda\""})";
  EXPECT_EQ(load(), "3e-06 77 cuda") << "the trainer's former values";
}

TEST(RunConfigTest, AConfigurationThatWasOnTrialIsFoundUnderItsLastName) {
  const std::string dir = testing::TempDir() + "/renamed";
  std::filesystem::create_directories(dir);
  std::ofstream(dir + "/config.resolved.yaml") << "run: {name: kept}\n";
  auto config = LoadRunConfig(dir + "/config.next.yaml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->run().name(), "kept");
  std::ofstream(dir + "/config.next.yaml") << "run: {name: next}\n";
  EXPECT_EQ(LoadRunConfig(dir + "/config.next.yaml")->run().name(), "next");
  std::filesystem::remove_all(dir);
  EXPECT_THAT(std::string(LoadRunConfig(dir + "/config.next.yaml").status().message()), HasSubstr("config.next.yaml"));
}

TEST(RunConfigTest, ALearningRateThatUnlearnsAModelIsDoubted) {
  auto doubts = [](const std::vector<std::string>& overrides) {
    return FindDoubts(ParseRunConfig("", "f", overrides).config);
  };
  EXPECT_THAT(doubts({"model.path=m", "train.learning_rate=2e-3"}),
              ElementsAre(HasSubstr("train.learning_rate is 0.002 beside a model.path")));
  EXPECT_THAT(doubts({"model.path=m", "train.learning_rate=1e-4"}), IsEmpty());
  EXPECT_THAT(doubts({"model.path=m"}), IsEmpty());
  EXPECT_THAT(doubts({}), IsEmpty()) << "built-in tasks begin with random weights";
}

TEST(RunConfigTest, FewerEpisodesThanARolloutersRoomAreDoubtedWhereAWorkerPlaysThem) {
  const auto doubts = [](std::vector<std::string> more) {
    const std::vector<std::string> played = {"data.task=guess",          "environment.name=guess",
                                             "reward.name=environment",  "rollout.max_total_tokens=32",
                                             "rollout.max_sequences=64", "run.rollouters=1"};
    more.insert(more.begin(), played.begin(), played.end());
    return FindDoubts(ParseRunConfig("", "f", more).config);
  };
  EXPECT_THAT(doubts({}), IsEmpty()) << "what is built in answers at once";
  EXPECT_THAT(doubts({"environment.command=w", "rollout.max_parked=449"}),
              ElementsAre(HasSubstr("at most 512 samples are under way, and a rollouter has room for 513")));
  EXPECT_THAT(doubts({"environment.command=w", "rollout.max_parked=448"}), IsEmpty());
  EXPECT_THAT(doubts({"environment.command=w", "rollout.max_parked=448", "run.rollouters=2"}),
              ElementsAre(HasSubstr("2 rollouters have room for 1024")));
}

TEST(RunConfigTest, AutomaticValuesAreResolved) {
  EXPECT_EQ(TargetStaleness(ParseRunConfig("", "f").config), 1);
  EXPECT_EQ(TargetStaleness(ParseRunConfig("", "f", {"staleness.max_staleness=0"}).config), 0);
  EXPECT_EQ(TargetStaleness(ParseRunConfig("", "f", {"staleness.target_staleness=2.5"}).config), 2.5);
  EXPECT_EQ(GroupsInFlight(ParseRunConfig("", "f").config), 16);
  EXPECT_EQ(GroupsInFlight(ParseRunConfig("", "f", {"rollout.max_sequences=17"}).config), 2);
  EXPECT_EQ(GroupsInFlight(ParseRunConfig("", "f", {"rollout.max_groups_in_flight=3"}).config), 3);
}

TEST(RunConfigTest, TheSequencesOfTheEndpointStayFree) {
  const std::string listen = "endpoint.listen=127.0.0.1:0";
  EXPECT_EQ(GroupsInFlight(ParseRunConfig("", "f", {listen}).config), 16);
  EXPECT_EQ(GroupsInFlight(ParseRunConfig("", "f", {listen, "endpoint.sequences=16"}).config), 15);
  EXPECT_EQ(GroupsInFlight(ParseRunConfig("", "f", {listen, "endpoint.sequences=17"}).config), 14);
  EXPECT_EQ(GroupsInFlight(ParseRunConfig("", "f", {listen, "endpoint.sequences=240"}).config), 1);
}

}  // namespace
}  // namespace syncopate::config
