#include "trainer/data/rollout_sessions.h"

#include <utility>

namespace syncopate::trainer {
namespace {

constexpr size_t kMaxRemembered = 256;  // names come from peers

}  // namespace

RolloutSessions::Connected RolloutSessions::Add(const MemberId& member) {
  Connected connected;
  for (const auto& [id, session] : sessions_) {
    if (session.member.replica_id == member.replica_id) connected.replaced = id;
  }
  connected.session = ++last_;
  RolloutSession& session = sessions_[connected.session] = {.id = connected.session, .member = member};
  if (connected.replaced.has_value()) {
    session.conduct = sessions_.at(*connected.replaced).conduct;
  } else if (auto known = bad_conduct_.extract(member.replica_id)) {
    session.conduct = std::move(known.mapped());
  }
  return connected;
}

void RolloutSessions::Remove(SessionId session) {
  auto found = sessions_.extract(session);
  if (!found) return;
  const std::string& replica = found.mapped().member.replica_id;
  bad_conduct_.erase(replica);
  if (found.mapped().conduct.invalid_in_row == 0 || bad_conduct_.size() >= kMaxRemembered) return;
  bad_conduct_[replica] = found.mapped().conduct;
}

bool RolloutSessions::OnAnswer(SessionId session, const absl::Status& judgement, absl::Time now) {
  RolloutSession* found = Find(session);
  if (found == nullptr) return false;
  RolloutConduct& conduct = found->conduct;
  if (judgement.ok()) {
    conduct.invalid_in_row = 0;
    return false;
  }
  ++found->invalid;
  conduct.last_fault = judgement;
  if (++conduct.invalid_in_row < kInvalidInRow) return false;
  const bool begins = !found->IsQuarantined(now);
  conduct.quarantined_until = now + kQuarantine;
  return begins;
}

RolloutSession* RolloutSessions::Find(SessionId session) {
  auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second;
}

const RolloutSession* RolloutSessions::Find(SessionId session) const {
  auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second;
}

}  // namespace syncopate::trainer
