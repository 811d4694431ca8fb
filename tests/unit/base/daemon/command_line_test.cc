#include "base/daemon/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace syncopate::daemon {
namespace {

using syncopate::testing::HasMessage;
using syncopate::testing::HasReason;
using syncopate::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CommandLineTest, TakesFlagsAnywhereAndOverridesInTheirOrder) {
  auto line = ParseCommandLine(
      {"--exit-on-completion", "/etc/run.yaml", "run.steps=3", "--insecure-bind", "a.b=--c", "--accept-reward-change"});
  ASSERT_THAT(line, IsOk());
  EXPECT_EQ(line->config, "/etc/run.yaml");
  EXPECT_TRUE(line->exit_on_completion);
  EXPECT_TRUE(line->accept_reward_change);
  EXPECT_THAT(line->overrides, ElementsAre("run.steps=3", "a.b=--c", "run.insecure_bind=true"));
}

TEST(CommandLineTest, AFileAloneAsksForNothingElse) {
  auto line = ParseCommandLine({"run.yaml"});
  ASSERT_THAT(line, IsOk());
  EXPECT_FALSE(line->exit_on_completion);
  EXPECT_FALSE(line->accept_reward_change);
  EXPECT_FALSE(line->help);
  EXPECT_THAT(line->overrides, IsEmpty());
}

TEST(CommandLineTest, AnInterruptionMayHaveACodeOfItsOwnButNoneThatForbidsARestart) {
  auto line = ParseCommandLine({"run.yaml", "--interrupted-code=143"});
  ASSERT_THAT(line, IsOk());
  EXPECT_EQ(line->interrupted_code, 143);
  for (const char* code : {"2", "3", "-1", "256", "x", ""}) {
    EXPECT_THAT(ParseCommandLine({"run.yaml", absl::StrCat("--interrupted-code=", code)}),
                HasReason("BAD_COMMAND_LINE"))
        << code;
  }
}

TEST(CommandLineTest, TheFileMayHaveAnEqualsSignInItsName) {
  auto line = ParseCommandLine({"runs/steps=3.yaml", "run.steps=4"});
  ASSERT_THAT(line, IsOk());
  EXPECT_EQ(line->config, "runs/steps=3.yaml");
}

TEST(CommandLineTest, RefusesWhatItDoesNotKnowNamingIt) {
  EXPECT_THAT(ParseCommandLine({"run.yaml", "--exit-on-complete"}), HasMessage(HasSubstr("--exit-on-complete")));
  EXPECT_THAT(ParseCommandLine({"run.yaml", "-v"}), HasReason("BAD_COMMAND_LINE"));
  EXPECT_THAT(ParseCommandLine({"run.yaml", "other.yaml"}), HasMessage(HasSubstr("other.yaml")));
  EXPECT_THAT(ParseCommandLine({}), HasReason("BAD_COMMAND_LINE"));
  EXPECT_THAT(ParseCommandLine({"--insecure-bind"}), HasMessage(HasSubstr("CONFIG is missing")));
}

TEST(CommandLineTest, HelpSaysEveryFlagAndExitCode) {
  ASSERT_THAT(ParseCommandLine({"run.yaml", "--help", "--nonsense"}), IsOk());
  EXPECT_TRUE(ParseCommandLine({"-h"})->help);
  const std::string usage = MakeUsage("trainer");
  for (const char* word :
       {"syncopate-trainer", "--exit-on-completion", "--insecure-bind", "--interrupted-code", "0 done", "4 the"}) {
    EXPECT_THAT(usage, HasSubstr(word));
  }
}

}  // namespace
}  // namespace syncopate::daemon
