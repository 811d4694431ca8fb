#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/trajectory.h"
#include "trainer/data/rollout_pace.h"

namespace syncopate::trainer {

// Names one stream of one rollouter while the stream is open. Never used twice.
using SessionId = int64_t;

// Time limits of a lease.
struct LeaseLimits {
  absl::Duration stall = absl::Seconds(30);    // without progress
  absl::Duration timeout = absl::Minutes(10);  // in total

  absl::Status Validate() const;  // INVALID_ARGUMENT (reason BAD_OPTIONS) unless 0 < stall <= timeout
};

// When a lease was issued, and when it last made progress.
struct LeaseTimes {
  absl::Time issued = {};
  absl::Time progressed = {};
  absl::Duration stood_still = {};  // its rollouter was away for so long since then: see RolloutSessions::SetAway

  absl::Duration Age(absl::Time now) const { return now - issued - stood_still; }
  // Its rollouter has been away since `since`, and is back.
  void AddStandstill(absl::Time since, absl::Time now);
};

enum class RevokeReason : uint8_t {
  kStalled,
  kTimeout,
  kSuperseded,  // the other attempt at the group was answered first; does not count against the rollouter
  kDeadline,    // the group is dropped, as it delays a full batch; does not count against the rollouter
};
const char* RevokeReasonName(RevokeReason reason);  // "LEASE_STALLED", "LEASE_TIMEOUT", "SUPERSEDED", "PAST_DEADLINE"

// Returns why a lease must be revoked now, if it must. A stalled lease counts as stalled, however old it is.
std::optional<RevokeReason> OverdueReason(const LeaseTimes& times, const LeaseLimits& limits, absl::Time now);

// True for the errors with which a rollouter returns a lease for reasons of its own: a drain or an abort (CANCELLED,
// UNAVAILABLE, ABORTED).
bool IsNobodysFault(const absl::Status& why);
// True if the reward failed: a fault of the row or of the reward's code, not of the rollouter.
bool IsPromptsFault(const absl::Status& why);

// How useful a rollouter's answers have been of late. A lease that is handed back is an answer of no use.
struct RolloutConduct {
  int64_t invalid_in_row = 0;
  absl::Status last_fault = {};  // of those
  absl::Time quarantined_until = absl::InfinitePast();
  absl::Time excused_return = absl::InfinitePast();  // the latest that counted; see OnReturn
};

struct RolloutSession {
  SessionId id = 0;
  MemberId member = {};
  PolicyVersion serving = {};  // as its last message said
  PolicyVersion pinned = {};   // answers evaluations beside the one that serves, as its last message said; none: no one
  int64_t room = 0;            // samples it takes on beside those it has
  RecentMedian slots{15};      // groups that it works on at once, as its last messages imply
  RolloutPace pace = {};       // of the training groups it works on
  int64_t accepted = 0;        // groups of this session that were accepted
  int64_t invalid = 0;         // answers of this session that were refused
  int64_t returned = 0;        // leases that it handed back
  std::string no_rewards = {};  // why it can have none, and so asks for no work; "": it can
  RolloutConduct conduct = {};
  absl::Time away_since = absl::InfiniteFuture();  // infinite: it is not away
  // Leases that were taken from it because they came no further, and of which it has not been heard again.
  std::set<LeaseId> stalled = {};

  bool IsAway() const { return away_since != absl::InfiniteFuture(); }
  // A quarantined rollouter gets no leases.
  bool IsQuarantined(absl::Time now) const { return now < conduct.quarantined_until; }
  // A stalled rollouter gets no leases until one of its leases makes progress (OnProgress), or it answers or returns
  // the stalled ones (OnHeard).
  bool IsStalled() const { return !stalled.empty(); }
  bool IsHeldBack(absl::Time now) const { return IsQuarantined(now) || IsStalled(); }
};

struct IssuedLease {
  SessionId session = 0;
  Lease lease = {};
  bool second = false;  // another attempt at the group is under way
};

struct Revocation {
  SessionId session = 0;
  LeaseId lease = {};
  RevokeReason reason = RevokeReason::kStalled;
};

// The rollouters that are connected, what each one serves and how much more work it takes. Plain state, no lock.
//
// A rollouter whose last kInvalidInRow answers were all invalid gets no leases for kQuarantine; after that each further
// invalid answer quarantines it again until a valid one comes. The record of a replica's answers outlives its stream. A
// stall does not, as a new stream begins without leases.
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
  // The rollouter returned a lease that was issued at `issued`; result as OnAnswer. A drain or an abort returns many
  // leases at once, which counts as one useless answer; leases issued since then that are returned too count again. A
  // return that is the prompt's fault does not count.
  bool OnReturn(SessionId session, const absl::Status& why, absl::Time issued, absl::Time now);

  // A lease of the rollouter was revoked for this reason.
  void OnRevoked(const Revocation& revoked);
  // A lease of the rollouter made progress.
  void OnProgress(SessionId session);
  // The rollouter answered or returned a lease that may have been revoked already.
  void OnHeard(SessionId session, const LeaseId& lease);

  // The rollouter has given up its device for the trainer's turn, or is back (trainer/turns): the clocks of its leases
  // stand still meanwhile. Returns since when it was away; the infinite future if it was not, or still is.
  absl::Time SetAway(SessionId session, bool away, absl::Time now);

  RolloutSession* Find(SessionId session);  // null when it is gone
  const RolloutSession* Find(SessionId session) const;
  std::map<SessionId, RolloutSession>& all() { return sessions_; }  // in order of connection
  const std::map<SessionId, RolloutSession>& all() const { return sessions_; }

 private:
  static bool CountFault(RolloutSession* session, const absl::Status& fault, absl::Time now);

  std::map<SessionId, RolloutSession> sessions_;
  std::map<std::string, RolloutConduct> bad_conduct_;  // of replicas that are not connected, a bounded number
  SessionId last_ = 0;
};

}  // namespace syncopate::trainer
