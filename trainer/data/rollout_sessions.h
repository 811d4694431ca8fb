#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/trajectory.h"

namespace syncopate::trainer {

// One stream of one rollouter, for the stream's life. Never used twice.
using SessionId = int64_t;

// How useful a rollouter's answers have been of late.
struct RolloutConduct {
  int64_t invalid_in_row = 0;
  absl::Status last_fault = {};  // of those
  absl::Time quarantined_until = absl::InfinitePast();
};

struct RolloutSession {
  SessionId id = 0;
  MemberId member = {};
  PolicyVersion serving = {};  // as its last message said
  int64_t room = 0;            // samples it takes on beside those it has
  int64_t leased = 0;          // training groups it works on
  int64_t accepted = 0;        // groups of this session that were accepted
  int64_t invalid = 0;         // answers of this session that were of no use
  RolloutConduct conduct = {};

  // It gets no leases until then.
  bool IsQuarantined(absl::Time now) const { return now < conduct.quarantined_until; }
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
//
// A rollouter whose last kInvalidInRow answers were all invalid is of no use: it gets no leases for kQuarantine, and
// after that each further invalid answer, until a valid one, puts it back. A replica's conduct outlives its stream.
class RolloutSessions {
 public:
  static constexpr int64_t kInvalidInRow = 10;
  static constexpr absl::Duration kQuarantine = absl::Minutes(1);

  struct Connected {
    SessionId session = 0;
    std::optional<SessionId> replaced = {};  // an older stream of the same replica, which is lost now
  };
  // A replica has one stream: a new one replaces the old, which stays listed until Remove(*replaced).
  Connected Add(const MemberId& member);
  void Remove(SessionId session);

  // An answer was judged: OK, or why it is of no use. True if the rollouter's quarantine begins with it.
  bool OnAnswer(SessionId session, const absl::Status& judgement, absl::Time now);

  RolloutSession* Find(SessionId session);  // null when it is gone
  const RolloutSession* Find(SessionId session) const;
  std::map<SessionId, RolloutSession>& all() { return sessions_; }  // in order of connection
  const std::map<SessionId, RolloutSession>& all() const { return sessions_; }

 private:
  std::map<SessionId, RolloutSession> sessions_;
  std::map<std::string, RolloutConduct> bad_conduct_;  // of replicas that are not connected, a bounded number
  SessionId last_ = 0;
};

}  // namespace syncopate::trainer
