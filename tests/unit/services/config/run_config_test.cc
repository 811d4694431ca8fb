#include "services/config/run_config.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/philox.h"
#include "base/status.h"

namespace syncopate::config {
namespace {

using google::protobuf::util::MessageDifferencer;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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
      {"reward: {name: math}", "expected dense, exact or overlong, as math reads text"},
      {"reward: {name: overlong}", "at least 1, as overlong falls over so many tokens"},
      {"reward: {overlong_buffer: 6}", "expected at most rollout.max_new_tokens 5"},
      {"reward: {pattern: '(a'}", "expected a regular expression; the regular expression (a is none at its byte 2"},
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
  EXPECT_THAT(Problems("reward: {timeout: 5m}"), IsEmpty()) << "nobody is asked";
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
  EXPECT_THAT(Problems("", {"steps"}), ElementsAre(HasSubstr("expected an override such as")));
  EXPECT_THAT(Problems("", {"=5"}), ElementsAre(HasSubstr("expected an override such as")));
  EXPECT_THAT(Problems("", {"run=5"}), ElementsAre("command line: run = 5: expected keys below this section"));
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
  // What is said of several keys is said of none of them.
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
  const std::string pool = whole + "{}[]&*!|>'\"%@`\t\0\xff";
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    std::string damaged = whole.substr(0, Philox4x32(seed, 0)[0] % (whole.size() + 1));
    for (uint64_t i = 1; i <= Philox4x32(seed, 0)[1] % 8; ++i) {
      auto draw = Philox4x32(seed, i);
      damaged.insert(draw[0] % (damaged.size() + 1), 1, pool[draw[1] % pool.size()]);
    }
    ParsedRunConfig parsed = ParseRunConfig(damaged, "f.yaml");
    if (!parsed.problems.empty()) continue;
    // What is accepted means the same when it is written out in full.
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

TEST(RunConfigTest, AutomaticValuesAreResolved) {
  EXPECT_EQ(TargetStaleness(ParseRunConfig("", "f").config), 1);
  EXPECT_EQ(TargetStaleness(ParseRunConfig("", "f", {"staleness.max_staleness=0"}).config), 0);
  EXPECT_EQ(TargetStaleness(ParseRunConfig("", "f", {"staleness.target_staleness=2.5"}).config), 2.5);
  EXPECT_EQ(GroupsInFlight(ParseRunConfig("", "f").config), 16);
  EXPECT_EQ(GroupsInFlight(ParseRunConfig("", "f", {"rollout.max_sequences=17"}).config), 2);
  EXPECT_EQ(GroupsInFlight(ParseRunConfig("", "f", {"rollout.max_groups_in_flight=3"}).config), 3);
}

}  // namespace
}  // namespace syncopate::config
