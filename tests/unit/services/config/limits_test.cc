// The trainer accepts every value that the configuration accepts: a wrong value is reported before anything starts.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/config/model_options.h"
#include "services/config/run_config.h"
#include "services/config/run_model.h"
#include "services/config/schema.h"
#include "services/config/trainer_options.h"

namespace syncopate::config {
namespace {

// The least and the greatest number that a key may have.
std::vector<std::string> MakeLimits(const ConfigKey& key) {
  std::vector<std::string> limits;
  if (key.option.has_min()) limits.push_back(absl::StrCat(key.path, "=", key.option.min()));
  if (key.option.has_max()) limits.push_back(absl::StrCat(key.path, "=", key.option.max()));
  return limits;
}

TEST(LimitsTest, EveryNumberThatTheConfigurationAllowsIsOneThatTrainingTakes) {
  const ConfigSchema schema;
  int tried = 0;
  for (const ConfigKey& key : schema.keys()) {
    if (key.section->name() != "train" && key.section->name() != "model") continue;
    for (const std::string& setting : MakeLimits(key)) {
      const ParsedRunConfig parsed = ParseRunConfig("", "f", {setting});
      if (!parsed.problems.empty()) continue;  // the value conflicts with the other defaults, and the problem says so
      const trainer::PolicyTrainer::Options options =
          MakePolicyTrainerOptions(parsed.config, FindRunModel(parsed.config)->shape);
      for (const absl::Status& status :
           {options.step.Validate(), options.optimizer.Validate(), options.model.Validate()}) {
        EXPECT_TRUE(status.ok()) << setting << ": " << status;
      }
      ++tried;
    }
  }
  EXPECT_GE(tried, 15);
}

}  // namespace
}  // namespace syncopate::config
