#include "services/config/difference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/config/run_config.h"

namespace syncopate::config {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::RunConfig With(const std::vector<std::string>& overrides) { return ParseRunConfig("", "f", overrides).config; }

TEST(DifferencesTest, NamesTheKeysWithTheirValuesInTheOrderOfTheSections) {
  EXPECT_THAT(Differences(With({}), With({"train.learning_rate=0.5", "run.name=other", "model.qk_norm=false"})),
              ElementsAre(ConfigDifference{"run.name", "\"run\"", "\"other\""},
                          ConfigDifference{"model.qk_norm", "true", "false"},
                          ConfigDifference{"train.learning_rate", "0.002", "0.5"}));
}

TEST(DifferencesTest, EqualConfigurationsHaveNone) {
  EXPECT_THAT(Differences(With({"run.seed=7"}), With({"run.seed=7"})), IsEmpty());
  EXPECT_THAT(Differences(With({}), With({"run.seed=0"})), IsEmpty()) << "a default that was written out";
}

}  // namespace
}  // namespace syncopate::config
