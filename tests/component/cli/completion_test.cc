#include "tools/cli/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/cli/command.h"

namespace syncopate::cli {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

std::string Script(CompletionShell shell) {
  CLI::App app;
  Command chosen;
  AddCommands(&app, "syncopate", &chosen);
  return CompletionScript(app, config::ConfigSchema(), shell);
}

std::string Write(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  std::ofstream(path) << text;
  return path;
}

// The lines that a program prints.
std::vector<std::string> MakeLines(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {"popen failed"};
  std::string text;
  char buffer[4096];
  while (size_t got = std::fread(buffer, 1, sizeof(buffer), pipe)) text.append(buffer, got);
  EXPECT_EQ(::pclose(pipe), 0) << command;
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

class BashCompletionTest : public ::testing::Test {
 protected:
  BashCompletionTest() : folder_(absl::StrCat(::testing::TempDir(), "/completion")) {
    std::filesystem::create_directories(folder_ + "/runs");
    std::ofstream(folder_ + "/reverse.yaml") << "run:\n";
  }

  // The value of COMPREPLY after the tab key at the end of `line`, typed in a folder with reverse.yaml and runs/.
  std::vector<std::string> Complete(const std::string& line) {
    const std::string driver = absl::StrCat("cd '", folder_, "' && source '", script_, "' && COMP_LINE='", line,
                                            "' && COMP_POINT=${#COMP_LINE} && _syncopate && "
                                            "for reply in \"${COMPREPLY[@]}\"; do echo \"$reply\"; done");
    return MakeLines(absl::StrCat("bash ", Write("driver.sh", driver)));
  }

  const std::string folder_;
  const std::string script_ = Write("syncopate.bash", Script(CompletionShell::kBash));
};

TEST_F(BashCompletionTest, OffersTheCommandsOfTheProgram) {
  EXPECT_THAT(Complete("syncopate "),
              UnorderedElementsAre("bench", "completion", "config", "ctl", "data", "doctor", "eval", "events", "export",
                                   "gateway", "generate", "k8s", "replica", "report", "run", "serve", "tokenize"));
  EXPECT_THAT(Complete("syncopate co"), UnorderedElementsAre("completion", "config"));
  EXPECT_THAT(Complete("build/bin/syncopate config "), UnorderedElementsAre("show", "check", "diff", "schema"));
  EXPECT_THAT(Complete("syncopate --v"), ElementsAre("--version"));
}

TEST_F(BashCompletionTest, OffersVerbsAlsoAfterOptionsWithTheirValues) {
  EXPECT_THAT(Complete("syncopate ctl "), IsSupersetOf({"status", "versions", "members", "syncs", "watch", "explain",
                                                        "size", "pause", "resume", "drain", "sleep", "wake", "abort",
                                                        "sync", "evict", "mode", "checkpoint", "stop", "generate"}));
  EXPECT_THAT(Complete("syncopate ctl --run runs --json ex"), ElementsAre("explain"));
  EXPECT_THAT(Complete("syncopate ctl --target=127.0.0.1:1 ch"), ElementsAre("checkpoint"));
}

TEST_F(BashCompletionTest, OffersTheOptionsOfTheVerbAndThoseItInherits) {
  EXPECT_THAT(Complete("syncopate ctl syncs --"), IsSupersetOf({"--last", "--follow", "--json", "--run", "--target"}));
  EXPECT_THAT(Complete("syncopate ctl status --"), Not(Contains("--follow")));
  EXPECT_THAT(Complete("syncopate run --re"), ElementsAre("--resume"));
}

TEST_F(BashCompletionTest, OffersTheValuesOfAnOption) {
  EXPECT_THAT(Complete("syncopate ctl mode --to "), UnorderedElementsAre("rollout", "trainer"));
  EXPECT_THAT(Complete("syncopate completion z"), ElementsAre("zsh"));
  EXPECT_THAT(Complete("syncopate ctl syncs --last "), IsEmpty());
}

TEST_F(BashCompletionTest, OffersFilesAndFoldersWhereTheyBelong) {
  EXPECT_THAT(Complete("syncopate run "), UnorderedElementsAre("reverse.yaml", "runs"));
  EXPECT_THAT(Complete("syncopate config check r"), UnorderedElementsAre("reverse.yaml", "runs"));
  EXPECT_THAT(Complete("syncopate run --resume "), ElementsAre("runs"));
  EXPECT_THAT(Complete("syncopate ctl status --run "), ElementsAre("runs"));
  EXPECT_THAT(Complete("syncopate events "), UnorderedElementsAre("trace", "runs"));
  EXPECT_THAT(Complete("syncopate events trace "), ElementsAre("runs"));
}

TEST_F(BashCompletionTest, OffersTheKeysOfTheConfiguration) {
  const config::ConfigSchema schema;
  std::vector<std::string> all;
  for (const config::ConfigKey& key : schema.keys()) all.push_back(key.path + "=");
  EXPECT_THAT(Complete("syncopate run reverse.yaml "), ::testing::UnorderedElementsAreArray(all));
  EXPECT_THAT(Complete("syncopate config show reverse.yaml run.steps=1 staleness.m"),
              ElementsAre("staleness.max_staleness="));
  EXPECT_THAT(Complete("syncopate run --resume runs checkpoint.ke"), ElementsAre("checkpoint.keep="));
}

TEST_F(BashCompletionTest, OffersTheValuesOfAKeyAsBashWantsThem) {
  // Bash takes the text after "=" for the word that is completed.
  EXPECT_THAT(Complete("syncopate run reverse.yaml data.task="),
              UnorderedElementsAre("reverse", "copy", "sort", "add", "guess"));
  EXPECT_THAT(Complete("syncopate run reverse.yaml train.correction=m"), ElementsAre("mis"));
  EXPECT_THAT(Complete("syncopate config show reverse.yaml checkpoint.at_end="), UnorderedElementsAre("true", "false"));
  EXPECT_THAT(Complete("syncopate run reverse.yaml run.steps="), IsEmpty());
}

TEST(CompletionScriptTest, ShellcheckFindsNothingInTheWholeScript) {
  if (std::system("command -v shellcheck >/dev/null") != 0) {
    GTEST_SKIP() << "there is no shellcheck; scripts/bootstrap.sh --tests installs it";
  }
  const std::string whole = Write("whole.bash", Script(CompletionShell::kBash));
  EXPECT_THAT(MakeLines(absl::StrCat("shellcheck --shell=bash --severity=warning ", whole)), IsEmpty());
}

TEST(ZshCompletionTest, TheScriptIsForZshAndKnowsTheSame) {
  const std::string script = Script(CompletionShell::kZsh);
  EXPECT_EQ(script.rfind("#compdef syncopate\n", 0), 0u);
  EXPECT_THAT(script, ::testing::HasSubstr("compdef _syncopate syncopate"));
  const config::ConfigSchema schema;
  for (const config::ConfigKey& key : schema.keys()) EXPECT_THAT(script, ::testing::HasSubstr(key.path + "="));
  if (std::system("command -v zsh >/dev/null") == 0) {
    MakeLines(absl::StrCat("zsh -n ", Write("_syncopate", script)));
  }
}

}  // namespace
}  // namespace syncopate::cli
