// Runs on text files: rows become token ids, bad rows, resumes, and rollouters without a file of the model.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/run_expectations.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::data_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A model directory and a file of sums; every tenth row is bad.
class DataTest : public ::testing::Test {
 protected:
  DataTest() {
    const std::string rows = Write("rows.jsonl", Rows(40));
    const std::string command = absl::StrCat(SYNCOPATE_PYTHON, " ", SYNCOPATE_SOURCE_DIR, "/scripts/tiny_model.py ",
                                             folder_.path(), "/model --hidden 32 --layers 1 --text ", rows);
    EXPECT_EQ(std::system(command.c_str()), 0);
  }

  static std::string Rows(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      if (i % 10 == 9) {
        absl::StrAppend(&text, "{\"question\": \"no prompt\"}\n");
      } else {
        absl::StrAppend(&text, "{\"prompt\": \"", i % 5, "+", i / 5, "=\", \"answer\": \"", i % 5 + i / 5, "\"}\n");
      }
    }
    return text;
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_.path(), "/", name); }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name)) << text;
    return Path(name);
  }
  std::vector<std::string> Settings(int steps, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> settings = {"model.path=" + Path("model"),
                                         "data.files=" + Path("rows.jsonl"),
                                         "data.max_prompt_tokens=32",
                                         "data.chat_template=off",
                                         "data.batch_groups=8",
                                         "rollout.samples=16",
                                         "rollout.max_new_tokens=4",
                                         "eval.prompts=16",
                                         "eval.show_samples=2",
                                         "run.rollouters=2",
                                         "train.device=cpu",
                                         "rollout.device=cpu",
                                         "train.learning_rate=2e-3",
                                         absl::StrCat("run.steps=", steps)};
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }

  TempDir folder_;
};

// The stop texts belong to the run and to its twin. A resume may not change them.
TEST_F(DataTest, AnswersEndWithTheTokenThatCompletesAStopInTheRunAsInItsTwin) {
  RunHarness run(Settings(4, {"staleness.max_staleness=0", "rollout.stop=[\"1\", \"2\", 5, 6, 7, 8, 9, 10]",
                              "rollout.max_new_tokens=16", "data.max_prompt_tokens=16"}));
  const auto twin = TwinDigests(run.config(), run.overrides(), 4);
  ASSERT_THAT(twin, IsOk());
  ExpectEnd(run.Run(), 0);
  EXPECT_EQ(run.Digests(), *twin);
  for (const Json& step : run.Records("step")) EXPECT_LT(step["truncated_samples"], 100) << step;
  auto changed = run.Resume({"run.steps=8", "rollout.stop=[5]"});
  ASSERT_THAT(changed, IsOk());
  const auto exit = (*changed)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_NE(exit->code, 0);
  EXPECT_THAT((*changed)->Log(), HasSubstr("rollout.stop"));
}

// As in papers: several answers to each prompt of further files, by the same version as the evaluation beside them.
TEST_F(DataTest, EvaluatesFurtherSetsWithSeveralAnswersToAPrompt) {
  const std::string few = Write("few.jsonl", Rows(9)), many = Write("many.jsonl", Rows(30));
  RunHarness run(Settings(4, {absl::StrCat("eval.sets=few: ", few, " n=4 temperature=0.8, many: ", many,
                                           " n=3 prompts=5 ", "max_new_tokens=2 reward=match"),
                              "eval.every_steps=2"}));
  ExpectEnd(run.Run(), 0);
  const std::vector<Json> evaluations = run.Records("eval");
  ASSERT_GE(evaluations.size(), 2u);
  for (const Json& evaluation : evaluations) {
    const Json& few_figures = evaluation["eval_sets"]["few"];
    EXPECT_EQ(few_figures["prompts"], 9) << evaluation;
    EXPECT_EQ(few_figures["asked"], 36);
    EXPECT_EQ(few_figures["missing"], 0);
    EXPECT_LE(few_figures["response_tokens_mean"], 4);
    ASSERT_EQ(few_figures["pass"].size(), 3u) << "1, 2 and 4";
    EXPECT_LE(few_figures["pass"]["1"]["mean"], few_figures["pass"]["4"]["mean"]);
    const Json& many_figures = evaluation["eval_sets"]["many"];
    // Every text is an answer to `match`; the reward of the other set finds none.
    EXPECT_GE(many_figures["majority"]["mean"], 0);
    EXPECT_LE(many_figures["majority"]["mean"], many_figures["pass"]["3"]["mean"]);
    EXPECT_EQ(many_figures["asked"], 15);
    EXPECT_LE(many_figures["response_tokens_mean"], 2);
    // The rewards are 0 and 1, so the mean over answers is pass@1.
    EXPECT_NEAR(many_figures["reward"]["mean"], many_figures["pass"]["1"]["mean"].get<double>(), 1e-9);
    EXPECT_EQ(evaluation["eval_prompts"], 16) << "sets are counted apart";
  }
}

// `eval` evaluates a checkpoint greedily, as its run did, so every answer is the same.
TEST_F(DataTest, EvalGivesACheckpointTheFiguresOfItsRun) {
  const std::string few = Write("few.jsonl", Rows(9));
  RunHarness run(Settings(4, {absl::StrCat("eval.sets=few: ", few)}));
  ExpectEnd(run.Run(), 0);
  ASSERT_FALSE(run.Records("eval").empty());
  const Json in_run = run.Records("eval").back();
  ASSERT_EQ(in_run["step"], 4);

  RunHarness alone(Settings(4, {absl::StrCat("eval.sets=few: ", few)}));
  std::vector<std::string> words = {"eval", run.Path("checkpoints/e1-s4"), alone.config(), "--quiet"};
  for (const std::string& word : alone.overrides()) words.push_back(word);
  const auto evaluated = RunCommand("syncopate", words);
  ASSERT_THAT(evaluated, IsOk());
  ASSERT_EQ(evaluated->code, 0) << evaluated->output;
  const std::vector<Json> records = alone.Records("eval");
  ASSERT_EQ(records.size(), 1u);
  for (const char* figure : {"eval_reward", "eval_prompts", "eval_response_tokens_mean", "eval_sets"}) {
    EXPECT_EQ(records[0][figure], in_run[figure]) << figure;
  }
  EXPECT_TRUE(alone.Records("step").empty());
  const Json summary = alone.Summary();
  EXPECT_EQ(summary["status"], "completed");
  EXPECT_EQ(summary["steps"], 0);
  EXPECT_EQ(summary["groups"]["acked"], 0);
  EXPECT_EQ(summary["evaluations"]["made"], 1) << summary;
}

// An evaluation that no rollouter finishes ends at its deadline and reports what is missing.
TEST_F(DataTest, AnEvaluationEndsAtItsDeadline) {
  const std::string many = Write("many.jsonl", Rows(40));
  RunHarness run(Settings(2, {absl::StrCat("eval.sets=many: ", many, " n=1000"), "eval.deadline=2s",
                              "eval.every_steps=0", "rollout.max_sequences=16"}));
  ExpectEnd(run.Run(), 0);
  const std::vector<Json> evaluations = run.Records("eval");
  ASSERT_FALSE(evaluations.empty());
  const Json& set = evaluations.back()["eval_sets"]["many"];
  EXPECT_EQ(set["asked"], 36000);
  EXPECT_GT(set["missing"], 0) << set;
  EXPECT_LT(set["missing"], 36000) << set;
}

// Eight steps of eight prompts use the 40 rows, 4 of them bad, nearly twice.
TEST_F(DataTest, TheRunHasTheBitsOfItsTwinAndBothSkipBadRows) {
  RunHarness run(Settings(8, {"staleness.max_staleness=0"}));
  const auto twin = TwinDigests(run.config(), run.overrides(), 8);
  ASSERT_THAT(twin, IsOk());
  ExpectEnd(run.Run(), 0);
  EXPECT_EQ(run.Digests(), *twin);
  EXPECT_NE(twin->at(1), twin->at(8));  // the model learns
  const Json dropped = run.Summary()["groups"]["dropped"];
  EXPECT_GE(dropped["skipped"], 4);
  EXPECT_LE(dropped["skipped"], 8);
  EXPECT_THAT(run.Log("trainer-0"),
              AllOf(HasSubstr("rows.jsonl:10: there is no field 'prompt'"), HasSubstr("rows.jsonl:40: ")));
}

TEST_F(DataTest, SamplesAreShownAsText) {
  RunHarness run(Settings(1));
  ExpectEnd(run.Run(), 0);
  const std::vector<Json> evaluations = run.Records("eval");
  ASSERT_FALSE(evaluations.empty());
  ASSERT_EQ(evaluations.back()["samples"].size(), 2u);
  const Json& sample = evaluations.back()["samples"][0];
  EXPECT_THAT(sample["prompt"].get<std::string>(), HasSubstr("+"));
  EXPECT_THAT(sample["expected"].get<std::string>(), HasSubstr("<|im_end|>"));
}

// Three supervised steps on the rows' own answers, then steps on rewards; the first incarnation ends after the fourth
// step.
TEST_F(DataTest, SupervisedStepsTeachTheRowsAnswersByTheChatTemplateAndGoOnAfterAResume) {
  RunHarness run(Settings(8, {"staleness.max_staleness=0", "train.sft_steps=3", "data.chat_template=auto",
                              "data.max_prompt_tokens=64", "data.response_field=answer"}));
  const auto twin = TwinDigests(run.config(), run.overrides(), 8);
  ASSERT_THAT(twin, IsOk());
  ExpectEnd(run.Run({"run.steps=4"}), 0);
  ExpectEnd(run.Resume({"run.steps=8"}), 0);
  EXPECT_EQ(run.Digests(), *twin);
  const std::vector<Json> steps = run.Records("step");
  ASSERT_EQ(steps.size(), 8u);
  EXPECT_EQ(steps[2]["objective"], "sft");
  EXPECT_EQ(steps[3]["objective"], "rl");
  EXPECT_LT(steps[2]["loss"].get<double>(), steps[0]["loss"].get<double>());
}

// The bytes at the beginning of a file of the trajectory log, before its first record.
constexpr uintmax_t kLogHeaderBytes = 16;

// Path -> contents of the files that a run keeps, including checkpoints and accepted answers. A trainer that starts
// begins a file of the log that contains no answer yet.
std::map<std::string, std::string> Kept(const RunHarness& run) {
  std::map<std::string, std::string> kept;
  for (const char* name : {"config.resolved.yaml", "config.next.yaml", "summary.json", "metrics.jsonl", "checkpoints",
                           "state/trainer/config.json", "state/trainer/data.json", "state/trainer/log"}) {
    if (!std::filesystem::exists(run.Path(name))) continue;
    std::vector<std::filesystem::path> files = {run.Path(name)};
    if (std::filesystem::is_directory(files[0])) {
      files.assign(std::filesystem::recursive_directory_iterator(files[0]), {});
    }
    for (const auto& path : files) {
      if (!std::filesystem::is_regular_file(path)) continue;
      if (path.extension() == ".log" && std::filesystem::file_size(path) <= kLogHeaderBytes) continue;
      std::ifstream file(path, std::ios::binary);
      kept[path.string()].assign(std::istreambuf_iterator<char>(file), {});
    }
  }
  return kept;
}

// One override that `run` refuses, one that the trainer refuses, and two that end a child other than the trainer.
TEST_F(DataTest, AnOverrideThatFailsIsNotKeptAndTheRunGoesOnWithoutIt) {
  RunHarness run(Settings(3, {"run.rollouters=1", "train.sft_steps=1"}));
  ExpectEnd(run.Run(), 0);
  const std::map<std::string, std::string> before = Kept(run);
  EXPECT_GT(before.size(), 6u);
  const std::string other = Write("other.jsonl", Rows(7));
  const std::pair<std::string, int> failing[] = {{"train.device=cuda:99", 2},
                                                 {"rollout.device=cuda:99", 2},
                                                 {"data.files=" + other, 1},
                                                 {"environment.command=false", 1},
                                                 {"rollouter.listen=192.0.2.1:1", 1}};
  for (const auto& [setting, code] : failing) {
    auto process = run.Resume({setting, "run.steps=9", "run.insecure_bind=true"});
    ASSERT_THAT(process, IsOk());
    const auto exit = (*process)->WaitExit(2 * kPatience);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(exit->code, code) << setting << "\n" << (*process)->Log();
    EXPECT_EQ(Kept(run), before) << setting;
  }
  ExpectEnd(run.Resume(), 0);
  EXPECT_EQ(run.LastStep(), 3);
  ExpectEnd(run.Resume({"run.steps=4"}), 0);
  EXPECT_EQ(run.LastStep(), 4);
  EXPECT_FALSE(std::filesystem::exists(run.Path("config.next.yaml")));
  EXPECT_NE(Kept(run).at(run.Path("state/trainer/config.json")), before.at(run.Path("state/trainer/config.json")));
}

// The resume works without the model directory, too: the tokenizer is kept with the run.
TEST_F(DataTest, AResumeGoesOnInTheOrderOfItsPass) {
  RunHarness run(Settings(8, {"staleness.max_staleness=0"}));
  const auto twin = TwinDigests(run.config(), run.overrides(), 8);
  ASSERT_THAT(twin, IsOk());
  ExpectEnd(run.Run({"run.steps=3"}), 0);
  std::filesystem::remove_all(Path("model"));
  std::filesystem::rename(Path("rows.jsonl"), Path("moved.jsonl"));
  ExpectEnd(run.Resume({"run.steps=8", "data.files=" + Path("moved.jsonl")}), 0);
  EXPECT_EQ(run.Digests(), *twin);
}

TEST_F(DataTest, AResumeWithOtherContentsIsRefused) {
  RunHarness run(Settings(2));
  ExpectEnd(run.Run(), 0);
  Write("rows.jsonl", Rows(30));
  const auto resumed = run.Resume({"run.steps=4"});
  ASSERT_THAT(resumed, IsOk());
  const auto exit = (*resumed)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_NE(exit->code, 0);
  EXPECT_THAT(run.Log("trainer-0"), AllOf(HasSubstr("FIXED_KEY"), HasSubstr("data.files")));
  EXPECT_EQ(run.LastStep(), 2);
}

TEST_F(DataTest, ABadRowEndsTheRunWithFileAndLineIfThatIsWanted) {
  RunHarness run(Settings(100, {"data.bad_rows=error"}));
  const auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  const auto exit = (*process)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 1);
  EXPECT_THAT((*process)->Log(), HasSubstr("rows.jsonl:"));
}

// The text of the prompt is rendered as the rows of the run are.
void ExpectAnAnswerOfTheLivePolicy(RunHarness* run) {
  const auto answer = run->Ctl({"generate", "2+3=", "--json"});
  ASSERT_THAT(answer, IsOk());
  ASSERT_EQ(answer->code, 0) << answer->output;
  const Json json = JsonLines(answer->output).at(0);
  EXPECT_TRUE(json["text"].is_string()) << json;
  EXPECT_LE(json["tokens"].size(), 4u);  // rollout.max_new_tokens of the run
  const auto streamed = run->Ctl({"generate", "--stream", "--max-new-tokens", "1", "2+3=", "rollouter-1"});
  ASSERT_THAT(streamed, IsOk());
  EXPECT_EQ(streamed->code, 0) << streamed->output;
  EXPECT_THAT(run->Ctl({"generate"})->output, HasSubstr("TEXT or --prompt"));
}

TEST_F(DataTest, AFileThatIsChangedUnderARunEndsItByName) {
  Write("rows.jsonl", Rows(20000));  // more rows than the run reads ahead
  RunHarness run(Settings(1000000));
  const auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(2), IsOk());
  ExpectAnAnswerOfTheLivePolicy(&run);
  Write("rows.jsonl", Rows(19999));
  const auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 1);
  EXPECT_THAT((*process)->Log(), AllOf(HasSubstr("rows.jsonl"), HasSubstr("was changed")));
}

TEST_F(DataTest, RolloutersNeedNoFileOfTheModel) {
  RunHarness run(Settings(1000000));
  auto synchronizer = run.StartDaemon("synchronizer");
  ASSERT_THAT(synchronizer, IsOk());
  // The rollouter waits for a trainer that describes the model.
  auto rollouter = run.LaunchDaemon("rollouter", 0, {"model.path=/nowhere"});
  ASSERT_THAT(rollouter, IsOk());
  ASSERT_TRUE(Eventually(kPatience, [&] {
    const auto members = run.Ctl({"members"});
    return members.ok() && members->output.find("rollouter-0") != std::string::npos;
  }));
  auto trainer = run.StartDaemon("trainer");
  ASSERT_THAT(trainer, IsOk());
  EXPECT_THAT(run.AwaitStep(2), IsOk());
}

TEST_F(DataTest, GenerateTakesText) {
  const auto result =
      RunCommand("syncopate", {"generate", Path("model"), "2+3=", "--max-new-tokens", "4", "--json", "--plain"});
  ASSERT_THAT(result, IsOk());
  ASSERT_EQ(JsonLines(result->output).size(), 1u) << result->output;
  const Json answer = JsonLines(result->output)[0];
  EXPECT_FALSE(answer["ids"].empty());
  EXPECT_TRUE(answer["text"].is_string());
  const auto nothing = RunCommand("syncopate", {"generate", Path("model")});
  ASSERT_THAT(nothing, IsOk());
  EXPECT_EQ(nothing->code, 2);
}

TEST_F(DataTest, DoctorLooksAtAModelDirectory) {
  const auto good = RunCommand("syncopate", {"doctor", "--model", Path("model")});
  ASSERT_THAT(good, IsOk());
  EXPECT_EQ(good->code, 0) << good->output;
  EXPECT_THAT(good->output, AllOf(HasSubstr("tokenizer"), HasSubstr("chat template"), HasSubstr("end of answers")));
  const auto reference =
      RunCommand("syncopate", {"doctor", "--model", Path("model"), "--reference", "--python", SYNCOPATE_PYTHON});
  ASSERT_THAT(reference, IsOk());
  EXPECT_THAT(reference->output, HasSubstr("reference"));
  EXPECT_EQ(reference->code == 0, reference->output.find("no package tokenizers") == std::string::npos)
      << reference->output;
  Write("model/tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
  const auto bad = RunCommand("syncopate", {"doctor", "--model", Path("model")});
  ASSERT_THAT(bad, IsOk());
  EXPECT_EQ(bad->code, 1);
  EXPECT_THAT(bad->output, HasSubstr("Unigram"));
}

// Skips if the program was not built because the wheel is missing.
TEST_F(DataTest, ParquetBecomesTheSameRowsAsJsonl) {
  if (!std::filesystem::exists(BinaryPath("syncopate-data-convert"))) GTEST_SKIP() << "no pyarrow wheel";
  const std::string script = Write("make.py", R"(
import sys, pyarrow as pa, pyarrow.parquet as pq
rows = [{"data_source": "s", "prompt": [{"role": "user", "content": "Wie groß? %d" % i}],
         "reward_model": {"style": "rule", "ground_truth": str(i)}, "extra_info": {"index": i, "part": None, "x": 0.5}}
        for i in range(5000)]
pq.write_table(pa.Table.from_pylist(rows), sys.argv[1])
)");
  ASSERT_EQ(std::system(absl::StrCat(SYNCOPATE_PYTHON, " ", script, " ", Path("rows.parquet")).c_str()), 0);
  const auto convert = [&](const std::string& from, const std::string& to) {
    return RunCommand("syncopate", {"data", "convert", Path(from), "--output", Path(to)}).value();
  };
  EXPECT_THAT(convert("rows.parquet", "converted.jsonl").output, HasSubstr("5000 rows"));
  std::ifstream file(Path("converted.jsonl"));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const std::vector<Json> rows = JsonLines(text);
  ASSERT_EQ(rows.size(), 5000u);
  EXPECT_EQ(rows[4321], Json::parse(R"({"data_source": "s", "prompt": [{"role": "user", "content": "Wie groß? 4321"}],
      "reward_model": {"style": "rule", "ground_truth": "4321"},
      "extra_info": {"index": 4321, "part": null, "x": 0.5}})"));

  EXPECT_EQ(convert("rows.parquet", "converted.jsonl").code, 1);  // the output file exists
  std::filesystem::resize_file(Path("rows.parquet"), 3000);
  const CommandResult cut = convert("rows.parquet", "cut.jsonl");
  EXPECT_EQ(cut.code, 1);
  EXPECT_THAT(cut.output, HasSubstr("rows.parquet"));
  EXPECT_FALSE(std::filesystem::exists(Path("cut.jsonl")));
}

TEST_F(DataTest, ConfigurationsThatCannotBeAreRefusedBeforeAnythingStarts) {
  const auto check = [&](const std::vector<std::string>& more) {
    RunHarness run(Settings(1, more));
    std::vector<std::string> args = {"config", "check", run.config()};
    for (const std::string& one : run.overrides()) args.push_back(one);
    const auto result = RunCommand("syncopate", args);
    EXPECT_THAT(result, IsOk());
    return result.ok() ? result->output : "";
  };
  EXPECT_THAT(check({"model.path="}), HasSubstr("model.path"));
  EXPECT_THAT(check({"data.files=a * x"}), HasSubstr("weight"));
  EXPECT_THAT(check({"data.chat_arguments=[1]"}), HasSubstr("JSON object"));
  EXPECT_THAT(check({"rollout.max_new_tokens=4"}), Not(HasSubstr("expected")));
}

TEST_F(DataTest, ConfigCheckAndDoctorLookAtModelAndRows) {
  const auto look = [&](std::vector<std::string> command, const std::vector<std::string>& more) {
    RunHarness run(Settings(1, more));
    command.push_back(run.config());
    for (const std::string& one : run.overrides()) command.push_back(one);
    return RunCommand("syncopate", command).value();
  };
  const CommandResult good = look({"config", "check"}, {"data.chat_template=auto", "data.max_prompt_tokens=64"});
  EXPECT_EQ(good.code, 0) << good.output;
  EXPECT_THAT(good.output, AllOf(HasSubstr("every number is finite"), HasSubstr("the first 32 rows"),
                                 HasSubstr("rows.jsonl:10: there is no field 'prompt'"), HasSubstr("is right")));
  const CommandResult bad = look({"config", "check"}, {"data.prompt_field=nothing"});
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.output, HasSubstr("what they name is not"));
  EXPECT_EQ(look({"config", "check", "--keys"}, {"model.path=/nowhere"}).code, 0);
  const CommandResult doctor = look({"doctor"}, {"model.path=/nowhere"});
  EXPECT_EQ(doctor.code, 1);
  EXPECT_THAT(doctor.output, AllOf(HasSubstr("/nowhere is not there"), HasSubstr("open files")));
}

}  // namespace
}  // namespace syncopate::testing::data_test
