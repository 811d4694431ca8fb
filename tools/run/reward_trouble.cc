#include "tools/run/reward_trouble.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace syncopate::run {
namespace {

constexpr absl::Duration kWithoutFor = absl::Seconds(5);

}  // namespace

std::string RewardTrouble::Alarm(const v1::TrainerServiceGetStatusResponse& status, absl::Time now) {
  const auto& rollouters = status.rollouters();
  const auto without = std::find_if(rollouters.begin(), rollouters.end(),
                                    [](const v1::RollouterView& one) { return !one.no_rewards().empty(); });
  without_since_ = without == rollouters.end() ? absl::InfiniteFuture() : std::min(without_since_, now);
  if (now - without_since_ >= kWithoutFor) {
    return absl::StrCat(without->replica_id(), " asks for no work: ", without->no_rewards());
  }
  const v1::RewardFailures& rewards = status.reward_failures();
  if (!rewards.alarm()) return "";
  return absl::StrCat(rewards.recent_failed(), " of the last ", rewards.recent(),
                      " groups got no reward, the last: ", rewards.last());
}

}  // namespace syncopate::run
