#include "rollouter/reward/reward.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncopate::rollouter {
namespace {

float DenseReward(const RewardInput& input) {
  if (input.answer_ids.empty()) return 0.0f;
  const size_t common = std::min(input.answer_ids.size(), input.response.size());
  int64_t right = 0;
  for (size_t i = 0; i < common; ++i) right += input.response[i] == input.answer_ids[i] ? 1 : 0;
  return static_cast<float>(right) / static_cast<float>(input.answer_ids.size());
}

float ExactReward(const RewardInput& input) { return input.response == input.answer_ids ? 1.0f : 0.0f; }

}  // namespace

RewardRegistry RewardRegistry::BuiltIn() {
  RewardRegistry registry;
  registry.functions_ = {{"dense", DenseReward}, {"exact", ExactReward}};
  return registry;
}

absl::Status RewardRegistry::Register(const std::string& name, RewardFunction function) {
  if (functions_.emplace(name, std::move(function)).second) return absl::OkStatus();
  return Error(absl::StatusCode::kAlreadyExists, "REWARD_EXISTS",
               absl::StrCat("a reward is named ", name, " already; choose another name"));
}

absl::StatusOr<const RewardFunction*> RewardRegistry::Find(const std::string& name) const {
  auto found = functions_.find(name);
  if (found != functions_.end()) return &found->second;
  std::string known;
  for (const auto& [other, function] : functions_) absl::StrAppend(&known, known.empty() ? "" : ", ", other);
  return Error(absl::StatusCode::kNotFound, "UNKNOWN_REWARD",
               absl::StrCat("this rollouter knows no reward named ", name, "; it knows ", known));
}

}  // namespace syncopate::rollouter
