#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "services/config/run_config.h"

namespace syncopate::config {
namespace {

using google::protobuf::util::MessageDifferencer;
using testing::HasSubstr;

v1::RunConfig Sample() {
  v1::RunConfig config = ParseRunConfig("", "f").config;
  config.mutable_run()->set_name("a.b-c");
  config.mutable_run()->set_dir("/tmp/with \"quotes\"\\ and\ttabs: # yes");
  config.mutable_run()->set_seed(9007199254740993);  // this number is not a double
  config.mutable_train()->set_learning_rate(0.1 + 0.2);
  config.mutable_train()->set_adam_eps(1.0000000000000002e-29);
  config.mutable_model()->set_qk_norm(false);
  return config;
}

TEST(ToYamlTest, ReadsBackEqual) {
  for (YamlComments comments : {YamlComments::kNone, YamlComments::kDocs}) {
    ParsedRunConfig parsed = ParseRunConfig(ToYaml(Sample(), comments), "resolved");
    EXPECT_TRUE(parsed.problems.empty()) << ToString(parsed.problems);
    EXPECT_TRUE(MessageDifferencer::Equals(parsed.config, Sample())) << ToYaml(Sample());
  }
}

TEST(ToYamlTest, LeavesOutTheShapeThatAModelDirectoryGives) {
  v1::RunConfig config = ParseRunConfig("", "f", {"model.path=/models/small"}).config;
  const std::string yaml = ToYaml(config);
  EXPECT_THAT(yaml, testing::Not(HasSubstr("hidden_size")));
  const ParsedRunConfig parsed = ParseRunConfig(yaml, "resolved");
  EXPECT_TRUE(parsed.problems.empty()) << ToString(parsed.problems);
  EXPECT_TRUE(MessageDifferencer::Equals(parsed.config, config)) << yaml;
}

TEST(ToYamlTest, WritesDefaultsToo) {
  std::string yaml = ToYaml(ParseRunConfig("", "f").config);
  EXPECT_THAT(
      yaml, HasSubstr("train:\n  objective: \"rl\"\n  sft_steps: 0\n  sft_learning_rate: 0\n  learning_rate: 0.002\n"));
  EXPECT_THAT(yaml, HasSubstr("  heartbeat: \"1s\"\n"));
  EXPECT_THAT(yaml, HasSubstr("  duration: \"\"\n"));
}

// YAML 1.1, which PyYAML reads, requires a dot and a sign in numbers with an exponent.
TEST(ToYamlTest, WritesNumbersThatEveryReaderOfYamlTakesForNumbers) {
  v1::RunConfig config = ParseRunConfig("", "f", {"train.learning_rate=1e-6", "train.adam_eps=2.5e-9"}).config;
  config.mutable_model()->set_rope_theta(1e22);
  EXPECT_THAT(ToYaml(config),
              testing::AllOf(HasSubstr("  learning_rate: 1.0e-06\n"), HasSubstr("  adam_eps: 2.5e-09\n"),
                             HasSubstr("  rope_theta: 1.0e+22\n"), HasSubstr("  beta1: 0.9\n")));
}

TEST(ToYamlTest, DocumentsEachKeyWhenAsked) {
  std::string yaml = ToYaml(ParseRunConfig("", "f").config, YamlComments::kDocs);
  EXPECT_THAT(
      yaml,
      HasSubstr("  # training steps; one without signal makes no update (an integer of at least 1)\n  steps: 100\n"));
}

}  // namespace
}  // namespace syncopate::config
