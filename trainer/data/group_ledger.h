#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "trainer/data/data_restore.h"
#include "trainer/data/explanation.h"
#include "trainer/data/flow_meter.h"
#include "trainer/data/ledger_options.h"
#include "trainer/data/partial_answers.h"
#include "trainer/data/prompt_backoff.h"
#include "trainer/data/prompt_failures.h"
#include "trainer/data/prompts.h"
#include "trainer/data/records.h"
#include "trainer/data/reward_failures.h"
#include "trainer/data/rollout_sessions.h"
#include "trainer/data/sizing.h"
#include "trainer/data/staleness_gate.h"
#include "trainer/data/staleness_tally.h"
#include "trainer/data/submission_check.h"
#include "trainer/data/supervised_batch.h"
#include "trainer/data/wait_explanation.h"

namespace syncopate::trainer {

// The trainer's record of prompt groups: which rollouter has the lease of which prompt, which answers count, and which
// groups each step trains.
//
// States of a group:  waiting -> leased -> (answer valid) logging -> (durable) completed -> taken -> (take durable)
// trained. A lease that is lost, returned, expired or answered badly puts the prompt back at the head of the queue, and
// its next lease is a new attempt; only a live attempt, from the stream that holds its lease, is ever accepted. Leases
// go out as the staleness gate allows for the version that the rollouter serves, lowest prompt first, dealt by how
// quickly rollouters answer (LeaseDealer).
//
// A lease without progress for lease_limits.stall is revoked, and its rollouter gets no others until it makes progress.
// If a lease is late (FlowMeter::Patience) while the trainer waits, its group gets a second attempt on another
// rollouter: the first valid answer counts and the other attempt is revoked. The gate counts one group all the while,
// admitted for the first attempt's version, and the prompt goes back only when no attempt is live. With
// OnDeadline::kDrop a group that runs and keeps a full batch from being taken is revoked, and its prompt consumed: the
// number of outstanding groups only falls, so the gate's bound stands, and the trainer never waits for a deadline.
// With OnDeadline::kMask a group may be trained however long it ran. The loss leaves its tokens beyond the bound out,
// and StalenessTally counts them apart.
//
// What rollouters report of unfinished answers is kept (PartialAnswers). When the last attempt at a group ends without
// fault, a group of which tokens are kept stays admitted, with its first version and deadline, and is leased again
// before all waiting prompts, to a rollouter that serves no older version than its newest token: it goes on behind
// those tokens. The ledger joins the answer to them. The kept tokens are memory alone: a trainer that starts again has
// none.
//
// A prompt that failed goes to another rollouter first, and is given up by the rule of PromptFailures. A prompt whose
// reward failed rests (PromptBackoff) while later prompts are leased; no new prompt is leased while every reward fails
// and kMostResting prompts rest.
//
// Sans-IO: events in, actions out. No thread, lock, clock or file; the owner passes the time, writes the records it is
// handed to a log in the order it got them, and says when they are durable. Equal events give equal actions. Ids and
// arguments that come from a peer may contain anything; those that come from the owner are trusted.
class GroupLedger {
 public:
  using Options = LedgerOptions;
  static constexpr int64_t kMostResting = 64;

  struct Counters {
    int64_t leased = 0;             // leases issued
    int64_t reissued = 0;           // leases lost with their stream, handed back without fault, or taken back
    int64_t stalled = 0;            // of them, taken back because they came no further
    int64_t timed_out = 0;          // or because they were too old
    int64_t superseded = 0;         // leases revoked as another attempt at the group was answered first
    int64_t accepted = 0;           // groups made durable
    int64_t trained = 0;            // groups in durable takes, replays included
    int64_t dropped_stale = 0;      // restored groups that no schedule could train in time
    int64_t filtered = 0;           // no signal, replaced
    int64_t failed = 0;             // groups given up: dropped as failed
    int64_t failed_attempts = 0;    // that were invalid or handed back as impossible
    int64_t duplicate = 0;          // submissions of what had been accepted
    int64_t expired = 0;            // submissions of leases that are not current
    int64_t rolled_back = 0;        // made by versions that a restore undid
    int64_t skipped = 0;            // rows that are no prompts
    int64_t continued = 0;          // leases that began with kept tokens
    int64_t kept_tokens = 0;        // with which they began
    int64_t past_deadline = 0;      // groups dropped, as they kept a full batch from being taken
    int64_t trained_samples = 0;    // of `trained`
    int64_t trained_tokens = 0;     // that rollouters made
    int64_t supervised_tokens = 0;  // trained, of the data's answers
  };

  enum class Result : uint8_t {
    kAccepted,         // hand `record` to the log; acknowledge when it is durable, after OnLogged
    kPending,          // the same lease is on its way to the log: acknowledge when that is durable
    kAlreadyAccepted,  // durable before
    kExpired,          // not the current lease of this stream
    kInvalid,          // see error; the prompt was put back
    kFenced,           // made in an older epoch; see error
  };
  struct Verdict {
    Result result = Result::kExpired;
    absl::Status error = {};
    std::optional<LogRecord> record = {};  // kAccepted: an AcceptedRecord, or a DropRecord if the group is filtered
    std::optional<Revocation> superseded = {};  // kAccepted: the other attempt at the group, which is over
  };

  // One batch, whole groups, by prompt.
  struct Take {
    TakeRecord record = {};  // to be made durable before training, unless this is a replay
    bool is_replay = false;
    std::vector<SharedGroup> groups = {};
    StalenessTally staleness = {};
    // Of those among `groups` that Options::recorded takes and that this incarnation has leased.
    std::map<GroupId, PromptOrigin> origins = {};
  };

  // A trainer at `version` that has its data from `restored` (a fresh PromptQueue and nothing else at the start of a
  // run). `prompts` must outlive the ledger; `options` have been validated.
  GroupLedger(const Options& options, const PromptSource* prompts, const PolicyVersion& version, RestoredData restored,
              absl::Time now);
  virtual ~GroupLedger() = default;
  static PromptQueue::Options QueueOptions(const Options& options, const PromptSource& prompts);

  // -- Rollouters. Unknown sessions are ignored: their stream broke a moment ago.
  RolloutSessions::Connected Connect(const MemberId& member);  // a replaced session is disconnected
  void OnServing(SessionId session, const PolicyVersion& version);
  void OnCredits(SessionId session, int32_t groups);  // replaces what it said before
  void Disconnect(SessionId session);                 // its prompts go back to the head of the queue

  // -- Leases.
  // All leases that may go out now; none before the supervised steps are made: then it reads the next batch of those.
  // Each is on its way when this returns. A prompt that its source is still reading
  // delays those behind it: call again when it is there. One that is unusable is dropped in its turn.
  std::vector<IssuedLease> NextLeases(absl::Time now);
  // The lease makes progress: a token of it was generated, or, while it waits for its turn, a token of another lease.
  void OnProgress(SessionId session, const LeaseId& lease, absl::Time now);
  // See RolloutSessions::SetAway.
  void OnAway(SessionId session, bool away, absl::Time now);
  // The rollouter has made `part` of the lease. OK also for a part that is not kept: of a lease that the session does
  // not hold, or that was reported before, or for want of room. INVALID_ARGUMENT: no answer can have such a part.
  absl::Status OnPart(SessionId session, const LeaseId& lease, const AnswerPart& part);
  // Takes back the leases that have stalled or are too old.
  std::vector<Revocation> ExpireLeases(absl::Time now);
  // With OnDeadline::kDrop: drops the running groups that keep a full batch from being taken, and says whose leases
  // these were. A group whose answer is on its way to the log is waited for.
  std::vector<Revocation> DropPastDeadline(absl::Time now);
  Verdict Submit(SessionId session, SharedGroup group, absl::Time now);
  // The rollouter cannot finish the lease. Returns when it was issued; nullopt if this session does not hold it.
  std::optional<absl::Time> Return(SessionId session, const LeaseId& lease, const absl::Status& why);

  // -- The log. `sequence` is the record's number there, rising.
  void OnLogged(const LeaseId& lease, uint64_t sequence);
  void OnLogFailed(const LeaseId& lease);  // the group is not accepted; its prompt goes back
  // Returns the drops since the last call, which the log must get. Drops of the restore must be durable before the
  // first step, or a later restore could accept the group again; no caller waits for the others.
  std::vector<DropRecord> UnloggedDrops();
  // Every record numbered below this is in the checkpoint that Snapshot() would give now.
  uint64_t OldestNeededSequence() const;

  // -- Steps.
  // The next batch: P groups, earliest deadline first, as the gate allows, or a logged take of before the restore.
  // Fewer than P only when no further prompt will come. None: wait, or the data have ended. A supervised step's are the
  // next P prompts that are usable, in order, each with its answer.
  std::optional<Take> TakeBatch();
  bool HasBatch() const;  // TakeBatch() would give one. Cheap: looks anew only after something has changed
  // The last take is durable (or is a replay, then `sequence` is 0): its groups are trained from now on, whatever
  // happens.
  void OnTakeLogged(uint64_t sequence);
  // The trainer waited so long for the next batch, since the last step or the last call.
  void OnBatchAwaited(absl::Duration waited) { waited_ += waited; }
  void OnStepDone(absl::Time now);
  // Rollouters may serve `version` and submit its tokens from now on. Call it before any process hears of `version`.
  void OnPublished(const PolicyVersion& version);

  // The data position for a checkpoint of the present step. Between steps only.
  DataState Snapshot() const;

  // -- Status, for people and programs.
  Explanation Explain(absl::Time now) const;
  // What SizeRun() needs of this run.
  SizingInputs MeasureSizing(absl::Time now) const;
  bool DataEnded() const;  // nothing waits, runs or is completed, and no step runs
  // That of SupervisedBatch.
  const absl::Status& failure() const { return supervised_.failure(); }
  bool in_step() const { return in_step_; }
  const PolicyVersion& version() const { return version_; }
  int64_t queued_groups() const { return gate_.completed(); }  // completed, not taken
  // Leased, or on their way to the log.
  int64_t leased_groups() const { return gate_.outstanding() - gate_.completed(); }
  // The newest version of this epoch that a rollouter serves; none without one.
  PolicyVersion NewestServed() const;
  int64_t replays_left() const { return static_cast<int64_t>(replays_.size()); }
  const Counters& counters() const { return counters_; }
  const StalenessTally& staleness() const { return staleness_; }  // of all takes so far
  const FlowMeter& flow() const { return flow_; }
  const StalenessGate& gate() const { return gate_; }
  const PartialAnswers& partial_answers() const { return partial_; }
  const RolloutSessions& sessions() const { return sessions_; }
  RolloutSessions& sessions() { return sessions_; }  // evaluation shares them
  // Failed rewards: the ledger counts those of training groups; evaluation adds its own.
  RewardFailures& rewards() { return rewards_; }
  const RewardFailures& rewards() const { return rewards_; }
  const SubmissionRules& rules() const { return rules_; }
  const Options& options() const { return options_; }

 protected:
  // Separate functions, so that a test can show that neither can be left out.
  virtual bool IsCurrent(const LeaseId& submitted, SessionId from, const LeaseId& current, SessionId holder) const;
  virtual PolicyVersion OldestAllowed(const Lease& lease) const { return lease.version; }
  virtual std::optional<RevokeReason> Overdue(const LeaseTimes& times, absl::Time now) const;
  virtual bool IsHeldBack(const RolloutSession& session, absl::Time now) const;  // quarantined or stalled
  // Whether one more attempt at a group whose admission or newest kept token is of `admitted` may go to this session.
  virtual bool MayTakeOver(const RolloutSession& session, const PolicyVersion& admitted) const;
  // Whether the prompt goes back after a failed attempt.
  virtual bool MayPutBack(size_t attempts_that_live) const { return attempts_that_live == 0; }
  // The group that OnDeadline::kDrop drops now.
  virtual std::optional<GroupId> FindBlocker() const { return gate_.Blocker(); }
  // Versions before this step can have made no token of an answer that is yet to come.
  virtual int64_t OldestKnownStep() const;
  // The batch that TakeBatch() would return now if there were no replays.
  virtual std::vector<GroupId> PickBatch() const;

 private:
  enum class Stage : uint8_t { kKept, kLeased, kLogging, kFiltering, kCompleted, kTaken };
  // One lease of a group.
  struct Attempt {
    LeaseId id = {};
    SessionId session = 0;  // that holds it
    LeaseTimes times = {};
  };
  struct Group {
    Stage stage = Stage::kLeased;  // kKept: no attempt lives, and tokens of the last one are kept
    Lease lease = {};              // as it went out first; from kLogging on its id is that of the attempt that counts
    // In kLeased: the live attempts, one or two; later: the accepted one, if this incarnation leased it.
    std::vector<Attempt> attempts = {};
    bool has_second = false;  // it has got its second attempt
    SharedGroup answer = {};  // from kLogging on
    uint64_t sequence = 0;    // from kCompleted on
  };
  using Groups = std::map<GroupId, Group>;
  struct Held {
    Groups::iterator group;
    std::vector<Attempt>::iterator attempt;
  };

  void AdoptAccepted(std::vector<RestoredData::Accepted> accepted);
  bool MayReceive(const RolloutSession& session) const;  // serves a version of this epoch that is still of use
  void NoteUnusable(const LeaseId& lease);               // that its row is no prompt, and consumed
  std::optional<absl::Duration> Patience() const { return flow_.Patience(options_.gate.batch_groups); }
  // Returns the rollouter that gets a lease of `prompt`; with `group`, one more lease of a group that is admitted.
  RolloutSession* NextReceiver(const GroupId& prompt, const Group* group, absl::Time now);
  bool IsLate(const Group& group, absl::Time now) const;
  // Groups that are to get a second attempt, the most urgent first.
  std::vector<GroupId> LateGroups(absl::Time now) const;
  void AddSecondAttempts(absl::Time now, std::vector<IssuedLease>* issued);
  void LeaseKept(absl::Time now, std::vector<IssuedLease>* issued);
  IssuedLease Issue(const LeaseId& id, RolloutSession* session, Group* group, absl::Time now);
  std::optional<Held> FindHeld(SessionId session, const LeaseId& lease);
  Verdict VerdictOnNotHeld(const LeaseId& lease);
  Verdict Accept(const Held& held, SharedGroup answer, absl::Time now);
  // The attempt has ended without an answer. If no other attempt is live, its group is kept with its tokens, or its
  // prompt goes back; always that with `anew`.
  void EndAttempt(const Held& held, bool anew = false);
  void PutBack(Groups::iterator found);
  void Consume(const LeaseId& lease, DropReason reason);
  void Fail(const Held& held, const absl::Status& why);
  bool IsHeldUp(const GroupId& prompt) const;  // as every reward fails
  void OnGroupsChanged() { batch_ready_.reset(); }
  bool NextIsSupervised() const;  // the step that the next batch is for
  const RestoredData::Replay* next_replay() const { return replays_.empty() ? nullptr : &replays_.front(); }
  Take TakeSupervised();
  bool NoMoreAnswers() const;  // nothing waits and nothing runs
  WaitView MakeWaitView(absl::Time now) const;
  WaitView::HeldLease MakeHeldLease(const Group& group, absl::Time now) const;

  const Options options_;
  const PromptSource* const prompts_;
  PolicyVersion version_;
  StalenessGate gate_;  // while takes are replayed it stands at the last of them: no earlier step takes new groups
  PromptQueue queue_;
  RolloutSessions sessions_;
  Groups groups_;  // leased to taken
  PartialAnswers partial_;
  PromptFailures failures_;
  PromptBackoff backoff_;
  RewardFailures rewards_;
  SubmissionRules rules_;
  std::deque<RestoredData::Replay> replays_;
  std::vector<DropRecord> unlogged_drops_;
  SupervisedBatch supervised_;
  std::vector<LeaseId> taking_;  // of the take that is on its way to the log
  bool taking_supervised_ = false;
  bool in_step_ = false;
  bool takes_answers_ = false;               // the step under way trains answers that the trainer waited for
  absl::Duration waited_ = {};               // for the next batch, since the last step
  mutable std::optional<bool> batch_ready_;  // PickBatch() is not empty; none: not known since the last change
  uint64_t last_sequence_ = 0;
  uint64_t replay_sequence_ = 0;  // oldest record that unfinished replays need
  absl::Time waiting_since_;
  Counters counters_;
  StalenessTally staleness_;
  FlowMeter flow_;
};

}  // namespace syncopate::trainer
