#include "tests/fault/continued_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/fault/fault_support.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing {

std::vector<std::string> OverridesOfLongAnswers() {
  return {"run.steps=1000000",         "data.length=12",
          "data.alphabet=4000",        "rollout.max_new_tokens=220",
          "model.hidden_size=128",     "model.max_position_embeddings=256",
          "model.num_hidden_layers=4", "data.batch_groups=2",
          "rollout.samples=4",         "rollout.max_sequences=8",
          "rollout.report_tokens=8",   "reward.name=exact",
          "eval.every_steps=0",        "checkpoint.every_steps=1000000",
          "sync.heartbeat=100ms"};
}

std::map<GroupId, std::vector<Trajectory>> AcceptedAnswers(const RunHarness& run) {
  std::map<GroupId, std::vector<Trajectory>> answers;
  auto history = ReadRunHistory(run.run_dir());
  EXPECT_THAT(history, IsOk());
  if (!history.ok()) return answers;
  for (const trainer::LogRecord& record : history->log) {
    const auto* accepted = std::get_if<trainer::AcceptedRecord>(&record);
    if (accepted != nullptr) answers[accepted->group->lease.group] = accepted->group->samples;
  }
  return answers;
}

int64_t ExpectSameAnswers(const RunHarness& run, const RunHarness& undisturbed) {
  const std::map<GroupId, std::vector<Trajectory>> expected = AcceptedAnswers(undisturbed);
  int64_t compared = 0;
  for (const auto& [group, samples] : AcceptedAnswers(run)) {
    const auto other = expected.find(group);
    if (other == expected.end()) continue;
    ++compared;
    EXPECT_EQ(samples.size(), other->second.size());
    for (size_t i = 0; i < samples.size() && i < other->second.size(); ++i) {
      EXPECT_EQ(samples[i].tokens, other->second[i].tokens) << group.ToString() << " sample " << i;
      EXPECT_EQ(samples[i].logprobs, other->second[i].logprobs) << group.ToString() << " sample " << i;
      EXPECT_EQ(samples[i].finish, other->second[i].finish);
    }
  }
  return compared;
}

int64_t ReadTrainerMetric(const RunHarness& run, const std::string& name) {
  auto trainer = run.Endpoint("trainer");
  if (!trainer.ok()) return 0;
  auto page = HttpGet(trainer->metrics, "/metrics");
  if (!page.ok()) return 0;
  for (absl::string_view line : absl::StrSplit(*page, '\n')) {
    double value = 0;
    if (absl::ConsumePrefix(&line, absl::StrCat(name, " ")) && absl::SimpleAtod(line, &value)) {
      return static_cast<int64_t>(value);
    }
  }
  return 0;
}

}  // namespace syncopate::testing
