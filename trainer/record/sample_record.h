#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/policy_version.h"
#include "base/trajectory.h"
#include "trainer/data/sample_choice.h"
#include "trainer/loss/advantages.h"
#include "trainer/loss/loss_options.h"

// The lines of samples.jsonl: one JSON object for each sample that was trained, evaluated or dropped. Pure.
namespace syncopate::trainer {

// What became of a sample.
struct SampleResult {
  std::string name;  // "trained", or why it was not: docs/operations.md lists the names
  // None if it has no advantage, or if the advantage depends on log-probs of the reference policy, which stay in the
  // step. Where tokens have advantages of their own it is their mean.
  std::optional<double> advantage = std::nullopt;
  std::vector<TokenRange> loss = {};  // the tokens of the answer that have a loss, before any correction masks some
};

// Returns the outcomes of the samples of a batch that a step from `step` to the next has trained, by group.
// Recomputes advantages from the rewards, as the step does. `made_update`: false if all updates of the step were
// skipped, since loss or gradient were not finite. INVALID_ARGUMENT as loss::GetOutcomes().
absl::StatusOr<std::vector<std::vector<SampleResult>>> TrainedResults(const std::vector<const TrajectoryGroup*>& groups,
                                                                      const loss::LossOptions& options, int64_t step,
                                                                      bool made_update);

// The samples that supervised steps learn have neither rewards nor versions.
SampleResult SupervisedResult(const Trajectory& sample);

// Everything that a line says. Pointers are borrowed, and never null.
struct SampleRecord {
  std::string kind = {};       // "train", "supervised", "eval" or "drop"
  PolicyVersion version = {};  // that the step made, that was evaluated, or that the trainer was at
  LeaseId lease = {};
  int32_t sample = 0;
  bool is_replay = false;  // the step repeats one from before a restart
  std::string rollouter = {};
  std::string set = {};          // of eval.sets; "" of others
  std::string file = {};         // the data file of the prompt, if it is known
  std::string data_source = {};  // of its row
  std::string environment = {};
  std::string expected = {};  // the right answer as text
  const std::vector<int32_t>* prompt_ids = nullptr;
  const Trajectory* answer = nullptr;
  SampleResult result = {};
  double unix_seconds = 0;  // when the line is written
};

// Takes from a prompt's task what a person wants to see beside an answer: environment, data_source and expected.
void AddOrigin(const PromptOrigin& origin, const std::function<std::string(const std::vector<int32_t>&)>& render,
               SampleRecord* record);

// A text longer than this is cut, and "cut" says so; more ids than this, of prompt or answer, are left out.
inline constexpr size_t kMaxSampleTextBytes = 64 << 10;
inline constexpr size_t kMaxSampleIds = 4096;

// The line without its end. It begins with kind, epoch and step, in this order, so that ReadSampleHead() need not parse
// it. `render` makes text of ids; text that is not UTF-8 is repaired.
std::string MakeSampleLine(const SampleRecord& record,
                           const std::function<std::string(const std::vector<int32_t>&)>& render);

struct SampleHead {
  std::string kind = {};
  PolicyVersion version = {};
};
// Returns what the line begins with; nullopt if it is no such line.
std::optional<SampleHead> ReadSampleHead(absl::string_view line);

// Whether a trainer that goes on at `restored_step` removes the line, because it makes the step again.
bool IsUndone(const SampleHead& head, int64_t restored_step);

}  // namespace syncopate::trainer
