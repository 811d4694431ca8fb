// What `syncopate` reports about a machine and a configuration before a run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/rpc/server.h"
#include "tests/support/run_expectations.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::tools_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// The finding about `subject` whose `looked_at` contains `about`; null if there is none.
Json MakeFinding(const std::vector<Json>& findings, const std::string& subject, const std::string& about = "") {
  for (const Json& finding : findings) {
    const std::string looked_at = finding["looked_at"];
    if (finding["subject"] == subject && looked_at.find(about) != std::string::npos) return finding;
  }
  return Json();
}

TEST(CommandLineTest, AnUnknownCommandIsNamedWithTheNearest) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"doktor"}, "syncopate has no command 'doktor'; the nearest is doctor"},
      {{"ctl", "--run", "/nowhere", "staus"}, "syncopate ctl has no command 'staus'; the nearest is status"},
      {{"config", "chekc"}, "syncopate config has no command 'chekc'; the nearest is check"},
  };
  for (const auto& [words, sentence] : cases) {
    const CommandResult result = RunSyncopate(words);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.output, HasSubstr(sentence));
  }
  EXPECT_THAT(RunSyncopate({"ctl"}).output, HasSubstr("required"));
}

TEST(DoctorTest, WhereTheseTestsRunNothingIsBad) {
  const CommandResult text = RunSyncopate({"doctor", ExamplePath("reverse.yaml")});
  EXPECT_EQ(text.code, 0) << text.output;
  EXPECT_THAT(text.output, HasSubstr(" 0 bad, "));
  const std::vector<Json> findings = JsonLines(RunSyncopate({"doctor", ExamplePath("reverse.yaml"), "--json"}).output);
  EXPECT_GE(findings.size(), 14u);
  for (const Json& finding : findings) {
    EXPECT_NE(finding["level"], "bad") << finding;
    EXPECT_EQ(finding["level"] != "good", finding["remedy"] != "") << finding;
  }
  for (const char* program : {"syncopate-synchronizer", "syncopate-trainer", "syncopate-rollouter"}) {
    EXPECT_EQ(MakeFinding(findings, "program", program)["found"], "starts") << program;
  }
}

TEST(DoctorTest, NamesEverythingThatWouldStopARun) {
  auto taken = rpc::Server::Start({}, {});
  ASSERT_THAT(taken, IsOk());
  const CommandResult result = RunSyncopate({"doctor", ExamplePath("reverse.yaml"), "--json", "run.dir=/proc/nowhere",
                                             "rollout.device=cuda:63", "trainer.listen=" + (*taken)->address()});
  EXPECT_EQ(result.code, 1);
  const std::vector<Json> findings = JsonLines(result.output);
  EXPECT_EQ(MakeFinding(findings, "run directory")["level"], "bad");
  EXPECT_EQ(MakeFinding(findings, "GPUs")["level"], "bad");
  const Json port = MakeFinding(findings, "address", "trainer.listen");
  EXPECT_EQ(port["level"], "bad");
  EXPECT_THAT(port["found"].get<std::string>(), HasSubstr("in use"));
}

TEST(DoctorTest, AWrongConfigurationIsItsOwnExitCode) {
  EXPECT_EQ(RunSyncopate({"doctor", "/nowhere.yaml"}).code, 2);
  EXPECT_THAT(RunSyncopate({"doctor", ExamplePath("reverse.yaml"), "train.lr=1"}).output, HasSubstr("learning_rate"));
}

TEST(ConfigTest, DiffSaysByItsExitCodeWhetherTwoAreEqual) {
  TempDir folder;
  const std::string other = folder.path() + "/other.yaml", broken = folder.path() + "/broken.yaml";
  std::ofstream(other) << std::ifstream(ExamplePath("reverse.yaml")).rdbuf();
  std::ofstream(broken) << "run: {stpes: 5}\n";
  const CommandResult same = RunSyncopate({"config", "diff", ExamplePath("reverse.yaml"), other});
  EXPECT_EQ(same.code, 0);
  EXPECT_THAT(same.output, IsEmpty());

  std::ofstream(other, std::ios::app) << "\nmetrics:\n  trainer_listen: 127.0.0.1:9\n";
  const CommandResult different = RunSyncopate({"config", "diff", other, ExamplePath("reverse.yaml")});
  EXPECT_EQ(different.code, 1);
  EXPECT_THAT(different.output, AllOf(HasSubstr("metrics.trainer_listen"), HasSubstr("\"127.0.0.1:9\""),
                                      HasSubstr("\"127.0.0.1:0\""), Not(HasSubstr("metrics.rollouter_listen"))));
  EXPECT_THAT(RunSyncopate({"config", "diff", other}).output, HasSubstr("DEFAULT"));
  EXPECT_EQ(RunSyncopate({"config", "diff", other, broken}).code, 2);
}

TEST(ConfigTest, SchemaIsJson) {
  const CommandResult schema = RunSyncopate({"config", "schema"});
  EXPECT_EQ(schema.code, 0);
  EXPECT_TRUE(Json::accept(schema.output));
}

}  // namespace
}  // namespace syncopate::testing::tools_test
