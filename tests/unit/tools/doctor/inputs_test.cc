#include "tools/doctor/inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/config/run_config.h"
#include "tests/support/golden_models.h"
#include "tests/support/process.h"

namespace syncopate::doctor {
namespace {

using Level = Finding::Level;
using ::syncopate::testing::GoldenAdapterPath;
using ::syncopate::testing::GoldenModelPath;
using ::syncopate::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kGoodRow[] = R"({"prompt": "1+2=", "answer": "3"})";

class ExamineInputsTest : public ::testing::Test {
 protected:
  // A copy of a golden model; it has no tokenizer.
  ExamineInputsTest() { std::filesystem::copy(GoldenModelPath("mistral"), Path("model")); }

  std::string Path(const std::string& name) const { return absl::StrCat(folder_.path(), "/", name); }
  std::string Write(const std::string& name, const std::string& text) const {
    std::filesystem::remove(Path(name));
    std::ofstream(Path(name)) << text;
    return Path(name);
  }
  // The finding about `subject`; an empty one if there is none.
  Finding Look(const std::string& subject, std::vector<std::string> settings = {}) const {
    settings.insert(settings.begin(),
                    {"model.path=" + Path("model"), "data.max_prompt_tokens=8", "rollout.max_new_tokens=8"});
    const config::ParsedRunConfig parsed = config::ParseRunConfig("", "test", settings);
    EXPECT_THAT(config::ToString(parsed.problems), IsEmpty());
    for (const Finding& finding : ExamineInputs(parsed.config)) {
      if (finding.subject == subject) return finding;
    }
    return {};
  }

  TempDir folder_;
};

TEST_F(ExamineInputsTest, ARunOfTheBuiltInTasksNamesNothing) {
  EXPECT_THAT(ExamineInputs(config::ParseRunConfig("", "test").config), IsEmpty());
}

TEST_F(ExamineInputsTest, EveryNumberOfTheWeightsIsLookedAt) {
  EXPECT_EQ(Look("weights").level, Level::kGood);
  const std::string shard = "model-00003-of-00003.safetensors";
  std::fstream weights(Path("model/" + shard), std::ios::in | std::ios::out | std::ios::binary);
  weights.seekp(-4, std::ios::end);
  weights.write("\xff\xff\xff\xff", 4);
  weights.close();
  const Finding bad = Look("weights");
  EXPECT_EQ(bad.level, Level::kBad);
  EXPECT_THAT(bad.found, HasSubstr(shard));
  EXPECT_THAT(bad.remedy, HasSubstr("another"));
}

TEST_F(ExamineInputsTest, WhatIsNoModelIsNamedAsWhatItIs) {
  Write("adapter_config.json", R"({"base_model_name_or_path": "org/base"})");
  EXPECT_THAT(Look("model", {"model.path=" + folder_.path()}).found, HasSubstr("PEFT adapters of org/base"));
  Write("model/model.safetensors", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_THAT(Look("weights").found, HasSubstr("this is a Git LFS pointer; git lfs pull"));
}

TEST_F(ExamineInputsTest, AdaptersMustFitTheModelAndBeFinite) {
  EXPECT_EQ(Look("adapters").subject, "") << "all weights are trained";
  EXPECT_THAT(Look("adapters", {"lora.rank=4", "lora.target_modules=q_proj,o_proj"}).found, "rank 4 on q_proj, o_proj");
  const Finding wide = Look("adapters", {"lora.rank=10000"});
  EXPECT_EQ(wide.level, Level::kBad);
  EXPECT_THAT(wide.found, AllOf(HasSubstr("lora.rank is 10000"), HasSubstr("self_attn.q_proj")));
  const Finding none = Look("adapters", {"lora.rank=4", "lora.target_modules=query"});
  EXPECT_EQ(none.level, Level::kBad);
  EXPECT_THAT(none.found, HasSubstr("\"query\" is no projection"));

  std::filesystem::copy(GoldenAdapterPath("mistral-all"), Path("adapter"));
  const Finding good = Look("adapters", {"lora.path=" + Path("adapter")});
  EXPECT_EQ(good.level, Level::kGood) << good.found;
  EXPECT_THAT(good.found, HasSubstr("rank "));
  const Finding other = Look("adapters", {"lora.path=" + GoldenAdapterPath("llama-all")});
  EXPECT_EQ(other.level, Level::kBad);
  EXPECT_THAT(other.found, HasSubstr("were the adapters made for another base?"));
  // The last number of the file becomes one that is not finite.
  std::fstream numbers(Path("adapter/adapter_model.safetensors"), std::ios::in | std::ios::out | std::ios::binary);
  numbers.seekp(-4, std::ios::end);
  numbers.write("\x00\x00\xc0\x7f", 4);
  numbers.close();
  const Finding spoilt = Look("adapters", {"lora.path=" + Path("adapter")});
  EXPECT_EQ(spoilt.level, Level::kBad);
  EXPECT_THAT(spoilt.found, AllOf(HasSubstr("base_model.model.model.layers."), HasSubstr("is not finite")));
}

TEST_F(ExamineInputsTest, TheRunsSequencesMustFitTheModel) {
  EXPECT_EQ(Look("context").level, Level::kGood);
  EXPECT_EQ(Look("context", {"rollout.max_new_tokens=100000", "train.micro_batch_tokens=200000"}).level, Level::kBad);
}

TEST_F(ExamineInputsTest, TheFirstRowsOfEachFileAreRead) {
  const std::string good = Write("good.jsonl", absl::StrCat(kGoodRow, "\n\n", kGoodRow, "\n"));
  const std::string bad = Write("bad.jsonl", absl::StrCat(kGoodRow, "\n\n{\"question\": 1}\n"));
  const std::vector<std::string> both = {"data.files=" + good, "data.eval_files=" + bad, "reward.name=match"};
  EXPECT_EQ(Look("data.files", both).level, Level::kGood);
  EXPECT_THAT(Look("data.files", both).looked_at, HasSubstr("the first 2 rows"));
  const Finding said = Look("data.eval_files", both);
  EXPECT_EQ(said.level, Level::kWarning);
  EXPECT_THAT(said.found, AllOf(HasSubstr("1 cannot be used"), HasSubstr("bad.jsonl:3: ")));
  EXPECT_EQ(Look("data.eval_files", {both[0], both[1], both[2], "data.bad_rows=error"}).level, Level::kBad);
}

TEST_F(ExamineInputsTest, AFileThatHoldsNoRowsSaysWhatItIs) {
  auto found = [this](const std::string& text) {
    const Finding finding = Look("data.files", {"data.files=" + Write("rows.jsonl", text), "reward.name=match"});
    EXPECT_EQ(finding.level, Level::kBad) << text;
    return finding.found;
  };
  EXPECT_THAT(found("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), HasSubstr("git lfs pull"));
  EXPECT_THAT(found("PAR1..."), HasSubstr("syncopate data convert"));
  EXPECT_THAT(found("\n \n"), HasSubstr("contains no rows"));
  EXPECT_THAT(found("{\"question\": 1}\n"), HasSubstr("rows.jsonl:1"));
  EXPECT_EQ(Look("data.files", {"data.files=/nowhere.jsonl", "reward.name=match"}).level, Level::kBad);
}

TEST_F(ExamineInputsTest, ARewardThatComparesWantsRightAnswers) {
  const std::string rows = Write("rows.jsonl", "{\"prompt\": \"1+2=\", \"solution\": \"3\"}\n");
  const Finding finding = Look("data.files", {"data.files=" + rows, "reward.name=match"});
  EXPECT_EQ(finding.level, Level::kWarning);
  EXPECT_THAT(finding.remedy, HasSubstr("data.answer_field"));
  EXPECT_EQ(Look("data.files", {"data.files=" + rows, "reward.name=match", "data.answer_field=solution"}).level,
            Level::kGood);
}

TEST_F(ExamineInputsTest, TheWorkersProgramAndItsFileMustBeThere) {
  auto worker = [this](const std::string& command) { return Look("worker", {"environment.command=" + command}); };
  EXPECT_EQ(worker("env A=1 sh").level, Level::kGood);
  EXPECT_THAT(worker("no-such-worker rewards.py").found, HasSubstr("no-such-worker is not found"));
  EXPECT_THAT(worker("sh /nowhere/rewards.py").found, HasSubstr("/nowhere/rewards.py is not there"));
}

TEST_F(ExamineInputsTest, ARewardThatItsFilesDoNotNameIsSaid) {
  const std::string rows = Write("rows.jsonl", absl::StrCat(kGoodRow, "\n"));
  const std::string code = Write("rewards.py", "@reward(\"short\")\ndef f(answer, row): return 1\n");
  auto worker = [&](const std::string& formula) {
    return Look("worker", {"data.files=" + rows, "reward.name=" + formula, "environment.command=sh " + code});
  };
  EXPECT_EQ(worker("match + python:short").level, Level::kGood);
  EXPECT_EQ(worker("python:shrot").level, Level::kWarning);
  EXPECT_THAT(worker("python:shrot").found, HasSubstr("\"shrot\""));
}

}  // namespace
}  // namespace syncopate::doctor
