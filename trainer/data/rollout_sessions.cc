#include "trainer/data/rollout_sessions.h"

namespace syncopate::trainer {

RolloutSessions::Connected RolloutSessions::Add(const MemberId& member) {
  Connected connected;
  for (const auto& [id, session] : sessions_) {
    if (session.member.replica_id == member.replica_id) connected.replaced = id;
  }
  connected.session = ++last_;
  sessions_[connected.session] = {.id = connected.session, .member = member};
  return connected;
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
