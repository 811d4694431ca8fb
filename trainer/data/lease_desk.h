#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "trainer/data/evaluation_series.h"
#include "trainer/data/group_ledger.h"
#include "trainer/data/rollout_roster.h"

namespace syncopate::trainer {

// Stands between rollouters and the two sources of leases: the ledger's training groups and the evaluation under way.
// Hands each answer, progress and return to the source of its lease, counts outcomes, quarantines rollouters whose
// answers are invalid, and revokes leases that make no progress.
//
// Sans-IO, like GroupLedger: the owner holds the lock, passes the time and sends the messages that are returned.
class LeaseDesk {
 public:
  // Outcomes of leases, counted since this incarnation began.
  struct Counts {
    std::map<std::string, int64_t> invalid = {};  // answers that were refused, by reason; all reasons are ours
    int64_t quarantines = 0;                      // that have begun
    int64_t stalled = 0;                          // leases taken back because they came no further, of evaluation too
    int64_t timed_out = 0;                        // or because they were too old
    int64_t superseded = 0;                       // leases revoked as another attempt was answered first
    int64_t past_deadline = 0;                    // leases revoked with a group that was dropped at its deadline
  };

  // This object owns `ledger`, `roster` and `evaluations` from now on.
  LeaseDesk(std::unique_ptr<GroupLedger> ledger, RolloutRoster roster, EvaluationSeries evaluations)
      : ledger_(std::move(ledger)), evaluations_(std::move(evaluations)), roster_(std::move(roster)) {}

  GroupLedger& ledger() { return *ledger_; }
  const GroupLedger& ledger() const { return *ledger_; }
  const RolloutRoster& roster() const { return roster_; }
  const Counts& counts() const { return counts_; }
  EvaluationSeries& evaluations() { return evaluations_; }
  const EvaluationSeries& evaluations() const { return evaluations_; }

  RolloutSessions::Connected Connect(const MemberId& member);
  void Disconnect(SessionId session);
  void SetServing(SessionId session, const PolicyVersion& version, const PolicyVersion& pinned);
  // `no_rewards`: why the rollouter cannot compute rewards, and therefore asks for no work; "": it can.
  void SetCredits(SessionId session, int32_t groups, const std::string& no_rewards);
  void SetWork(SessionId session, const RolloutRoster::Work& work);
  // Whether the rollouters' judge has used `limit` tokens or more, over the whole run; 0: there is no limit.
  bool IsJudgeSpent(int64_t limit) const { return limit > 0 && roster_.Total().judge_tokens >= limit; }
  // These leases made progress; leases that the session does not hold are ignored.
  void RecordProgress(SessionId session, const std::vector<LeaseId>& leases, absl::Time now);
  // See RolloutSessions::SetAway.
  void SetAway(SessionId session, bool away, absl::Time now);
  // The rollouter has made `part` of a training lease; a part that cannot be one is logged, and not kept.
  void RecordPart(SessionId session, const LeaseId& lease, const AnswerPart& part);

  // Leases that may go out now: those of the evaluation first; no others if `evaluation_only`.
  std::vector<IssuedLease> NextLeases(absl::Time now, bool evaluation_only);
  // Revokes leases that have stalled or are too old, and those of groups that are dropped at their deadline. Cheap:
  // checks at most ten times a second. After a pause of five seconds between two calls (the process stood still) it
  // waits five seconds more, so that the messages of rollouters from that time are read first.
  std::vector<Revocation> RevokeLeases(absl::Time now);

  GroupLedger::Verdict Submit(SessionId session, const SharedGroup& group, absl::Time now);
  // The rollouter cannot finish the lease.
  void Return(SessionId session, const LeaseId& lease, const absl::Status& why, absl::Time now);
  // The answer to the lease could not be decoded.
  void Reject(SessionId session, const LeaseId& lease, const absl::Status& why, absl::Time now);

 private:
  std::vector<Revocation> ExpireLeases(absl::Time now);
  // Removes the lease from its book. Returns when it was issued; nullopt if the session did not hold it.
  std::optional<absl::Time> Release(SessionId session, const LeaseId& lease, const absl::Status& why);
  std::string GetName(SessionId session) const;  // for the log
  void RecordAnswer(SessionId session, const absl::Status& judgement, absl::Time now);
  void RecordQuarantine(SessionId session);
  void LogRewardFailure(absl::Time now);
  bool ExpiryIsDue(absl::Time now);

  const std::unique_ptr<GroupLedger> ledger_;
  EvaluationSeries evaluations_;
  RolloutRoster roster_;
  Counts counts_;
  int64_t reward_failures_logged_ = 0;
  absl::Time next_reward_line_ = absl::InfinitePast();
  absl::Time expiry_looked_at_ = absl::InfinitePast();
  absl::Time no_expiry_before_ = absl::InfinitePast();
};

}  // namespace syncopate::trainer
