#include "trainer/data/prompt_failures.h"

namespace syncopate::trainer {

bool PromptFailures::Add(const GroupId& prompt, const RolloutSession& failed_by, const Fault& fault) {
  Failures& failures = failures_[prompt];
  if (failures.session != failed_by.id) {
    failures.session = failed_by.id;
    failures.accepted = failed_by.accepted;
  }
  ++failures.count;
  failures.replicas.insert(failed_by.member.replica_id);
  failures.rewards_alone &= fault.is_reward;
  if (failures.count < most_) return false;
  if (failures.rewards_alone && fault.others_were_judged) return true;
  // A rollouter that fails at everything says nothing about the prompt.
  return failures.replicas.size() > 1 || failed_by.accepted > failures.accepted;
}

bool PromptFailures::HasFailed(const GroupId& prompt, const std::string& replica) const {
  auto found = failures_.find(prompt);
  return found != failures_.end() && found->second.replicas.contains(replica);
}

}  // namespace syncopate::trainer
