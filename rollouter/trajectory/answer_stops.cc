#include "rollouter/trajectory/answer_stops.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace syncopate::rollouter {

AnswerStops::AnswerStops(const StopRules* rules, int32_t samples) : rules_(*rules) {
  if (rules_.texts.empty()) return;
  for (const std::string& text : rules_.texts) longest_ = std::max(longest_, text.size());
  samples_.resize(static_cast<size_t>(samples), Sample{rules_.tokenizer->Stream(/*skip_special_tokens=*/false)});
}

bool AnswerStops::Completes(int32_t sample, int32_t token) {
  const std::vector<int32_t>& ids = rules_.token_ids;
  if (std::find(ids.begin(), ids.end(), token) != ids.end()) return true;
  if (samples_.empty()) return false;
  auto& [stream, tail] = samples_[static_cast<size_t>(sample)];
  tail += stream.Add(token);
  const bool completes = std::any_of(rules_.texts.begin(), rules_.texts.end(),
                                     [&tail = tail](const std::string& text) { return absl::StrContains(tail, text); });
  if (tail.size() >= longest_) tail.erase(0, tail.size() - (longest_ - 1));
  return completes;
}

}  // namespace syncopate::rollouter
