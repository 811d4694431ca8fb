#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/trajectory.h"

namespace syncopate::trainer {

// One stream of one rollouter, for the stream's life. Never used twice.
using SessionId = int64_t;

struct RolloutSession {
  SessionId id = 0;
  MemberId member = {};
  PolicyVersion serving = {};  // as its last message said
  int64_t room = 0;            // samples it takes on beside those it has
  int64_t leased = 0;          // training groups it works on
  int64_t accepted = 0;        // groups of this session that were accepted
};

struct IssuedLease {
  SessionId session = 0;
  Lease lease = {};
};

struct Revocation {
  SessionId session = 0;
  LeaseId lease = {};
  std::string reason = {};  // UPPER_SNAKE_CASE
};

// Who is connected, what each one serves and how much more work it takes. Plain state, no lock.
class RolloutSessions {
 public:
  struct Connected {
    SessionId session = 0;
    std::optional<SessionId> replaced = {};  // an older stream of the same replica, which is lost now
  };
  // A replica has one stream: a new one replaces the old, which stays listed until Remove(*replaced).
  Connected Add(const MemberId& member);
  void Remove(SessionId session) { sessions_.erase(session); }

  RolloutSession* Find(SessionId session);  // null when it is gone
  const RolloutSession* Find(SessionId session) const;
  std::map<SessionId, RolloutSession>& all() { return sessions_; }  // in order of connection
  const std::map<SessionId, RolloutSession>& all() const { return sessions_; }

 private:
  std::map<SessionId, RolloutSession> sessions_;
  SessionId last_ = 0;
};

}  // namespace syncopate::trainer
