// `syncopate bench train` on the CPU, with a tiny model. The tests check that each case measures something, not the
// figures.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "tests/component/bench/bench_outcome.h"
#include "tests/support/process.h"

namespace syncopate::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(120);

BenchOutcome Bench(std::vector<std::string> more) {
  TempDir temp;
  std::vector<std::string> args = {"bench", "train",   "--model", "tiny",           "--device", "cpu",       "--tokens",
                                   "256",   "--steps", "2",       "--warm-seconds", "0",        "--longest", "64"};
  args.insert(args.end(), more.begin(), more.end());
  return AwaitBench(Process::Start({SYNCOPATE_BINARY, args, temp.path() + "/log"}), kPatience);
}

TEST(BenchTrainTest, TellsALineForTheWholeStepTheProgramAndThePassForLogProbs) {
  const BenchOutcome outcome = Bench({"--json", "--ragged"});
  EXPECT_EQ(outcome.code, 0) << outcome.log;
  std::map<std::string, json> lines;
  for (absl::string_view line : absl::StrSplit(outcome.log, '\n')) {
    const json parsed = json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
    if (parsed.is_object()) lines[parsed["case"]] = parsed;
  }
  ASSERT_EQ(lines.size(), 3u) << outcome.log;
  for (const char* name : {"policy", "program", "logprobs"}) {
    EXPECT_EQ(lines[name]["tokens"], 256) << name;
    EXPECT_GT(lines[name]["tokens_per_second"], 0) << name;
    EXPECT_GT(lines[name]["entropy"], 0) << name;
  }
  EXPECT_EQ(lines["policy"]["skipped"], 0);
  EXPECT_LE(lines["policy"]["optimizer_ms"], lines["policy"]["ms"]);
}

TEST(BenchTrainTest, SaysInWordsHowFastItWas) {
  const BenchOutcome outcome = Bench({"policy", "--layers", "1", "--recompute", "full", "--deterministic"});
  EXPECT_EQ(outcome.code, 0) << outcome.log;
  EXPECT_THAT(outcome.log, HasSubstr("policy    tiny, 256 tokens: "));
  EXPECT_THAT(outcome.log, HasSubstr(" tokens/s"));
  EXPECT_THAT(outcome.log, HasSubstr(", deterministic")) << "beside the default, in one run";
}

TEST(BenchTrainTest, SaysWhatACheckpointCostsAStepAndThatItsCopyIsOfTheStepBefore) {
  const BenchOutcome outcome = Bench({"save", "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.log;  // the benchmark checks the digest of the copy
  const json line = json::parse(outcome.log, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(line.is_object()) << outcome.log;
  EXPECT_EQ(line["case"], "save");
  EXPECT_GT(line["copied_gib"], 0);
  EXPECT_LE(line["held_ms"], line["saved_step_ms"]);
  EXPECT_GT(line["step_ms"], 0);
}

TEST(BenchTrainTest, TakesAVocabularyOfAnySize) {
  const BenchOutcome outcome = Bench({"policy", "--json", "--vocabulary", "1003"});
  EXPECT_EQ(outcome.code, 0) << outcome.log;
  const json line = json::parse(outcome.log, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(line.is_object()) << outcome.log;
  EXPECT_EQ(line["vocabulary"], 1003);
}

TEST(BenchTrainTest, SeveralRanksSayWhatEachHasAndWhatExchangingCosts) {
  const BenchOutcome outcome = Bench({"--json", "--ranks", "2"});
  EXPECT_EQ(outcome.code, 0) << outcome.log;
  const json line = json::parse(outcome.log, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(line.is_object()) << outcome.log;
  EXPECT_EQ(line["case"], "policy");
  EXPECT_EQ(line["ranks"], 2);
  EXPECT_EQ(line["tokens"], 256);
  EXPECT_GT(line["tokens_per_second"], 0);
  EXPECT_GT(line["silent_ms"], 0);
  EXPECT_LE(line["exposed_share"], 1);
  const BenchOutcome program = Bench({"program", "--ranks", "2"});
  EXPECT_EQ(program.code, 2);
  EXPECT_THAT(program.log, HasSubstr("the case policy alone"));
}

TEST(BenchTrainTest, ACaseThatCannotBeIsRefusedWithTheReason) {
  const BenchOutcome layers = Bench({"--layers", "3"});
  EXPECT_EQ(layers.code, 2);
  EXPECT_THAT(layers.log, HasSubstr("tiny has 2 layers, not 3"));
  const BenchOutcome memory = Bench({"memory"});
  EXPECT_EQ(memory.code, 2);
  EXPECT_THAT(memory.log, HasSubstr("needs a GPU"));
}

}  // namespace
}  // namespace syncopate::testing
