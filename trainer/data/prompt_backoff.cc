#include "trainer/data/prompt_backoff.h"

#include <algorithm>
#include <cmath>

namespace syncopate::trainer {

void PromptBackoff::Add(const GroupId& prompt) {
  Failing& failing = failing_[prompt];
  ++failing.failures;
  if (!failing.rests) ++resting_;
  failing.rests = true;
  failing.until = absl::InfinitePast();
}

std::vector<GroupId> PromptBackoff::TakeRested(absl::Time now) {
  std::vector<GroupId> rested;
  if (resting_ == 0) return rested;
  for (auto& [prompt, failing] : failing_) {
    if (!failing.rests) continue;
    if (failing.until == absl::InfinitePast()) {
      failing.until = now + std::min(kFirst * std::exp2(std::min(failing.failures - 1, 10)), kLongest);
    }
    if (now < failing.until) continue;
    failing.rests = false;
    --resting_;
    rested.push_back(prompt);
  }
  return rested;
}

void PromptBackoff::Forget(const GroupId& prompt) {
  const auto found = failing_.extract(prompt);
  if (found && found.mapped().rests) --resting_;
}

}  // namespace syncopate::trainer
