#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "synchronizer/attempts/sync_coordinator.h"
#include "synchronizer/members/membership.h"
#include "synchronizer/members/trainer_group.h"
#include "synchronizer/messages.h"
#include "synchronizer/transport/plan_cache.h"
#include "synchronizer/versions/version_ledger.h"

namespace syncopate::synchronizer {

// The actions of the control plane, in the order in which the loop carries them out.
struct SendCommand {
  SessionId session = 0;
  Command command;
};
struct CloseSession {  // after everything that was sent on it
  SessionId session = 0;
  absl::Status status;
};
struct Persist {  // before any later action, because later actions may report it to members
  LedgerRecord record;
};
struct SyncEnded {
  SyncRecord record;
};
struct Note {  // a line for the log
  bool alarm = false;
  std::string text;
};
using Action = std::variant<SendCommand, CloseSession, Persist, SyncEnded, Note>;

// All decisions of the synchronizer: members, versions, weight syncs. Sans-IO and deterministic: events and the time
// come in through the On... calls; actions are collected, and taken with TakeActions() after each call. Not
// thread-safe; one loop owns it.
class ControlPlane {
 public:
  struct Options {
    Membership::Options membership;
    SyncCoordinator::Options sync;
    std::string run_id;  // used if the records name no run yet
    absl::Status Validate() const;
  };

  // The state after `records`, which earlier incarnations wrote in this order. INVALID_ARGUMENT reason BAD_OPTIONS;
  // DATA_LOSS reason BAD_LEDGER.
  static absl::StatusOr<ControlPlane> Restore(const Options& options, const std::vector<LedgerRecord>& records);

  // Handles the first message of a new stream. A refusal closes the stream with the reason: BAD_MEMBER, WRONG_RUN,
  // REPLACED, EVICTED, FENCED, MODEL_MISMATCH, or DTYPE_MISMATCH if only dtypes differ from the trainer's. For a
  // trainer rank also LAYOUT_MISMATCH and DTYPE_MISMATCH if another rank has another layout. For a rollouter
  // WRONG_DIGEST if it serves other bits than were published under that version.
  //
  // The version that a rollouter claims to serve, here and in heartbeats, is accepted if it was published. An
  // unpublished version counts as none, but nothing older is sent to that member. If the trainer then publishes an
  // older version of the same epoch, the claim was false, and the member is evicted with reason UNPUBLISHED_VERSION. A
  // heartbeat with other bits than published evicts the member with reason WRONG_DIGEST.
  void OnHello(SessionId session, Hello hello, absl::Time now);
  // `held`: why the member takes no version for now; "": it takes versions. `base_digest`: names the base weights that
  // it has; 0: none.
  void OnHeartbeat(SessionId session, PolicyVersion serving, uint64_t serving_digest, absl::Time now,
                   const std::string& held = "", uint64_t base_digest = 0);
  void OnReport(SessionId session, const SyncReport& report, absl::Time now);
  void OnLeave(SessionId session, const std::string& reason, absl::Time now);
  void OnStreamBroken(SessionId session, absl::Time now);

  struct Publication {
    MemberId member;
    PolicyVersion version;
    std::vector<uint64_t> bucket_digests;  // of all ranks, in their order: SyncPlan::digests()
    uint64_t manifest_fingerprint = 0;
    double stage_seconds = 0;  // of the slowest rank
    double unix_seconds = 0;   // for people
    Subset subset = {};
  };
  // Records a version, which rank 0 publishes whole when all ranks of the trainer have staged it. If each rank
  // published its own part, versions could starve: a newer part of one rank would keep the version before from ever
  // being complete. Returns the number of receivers that are behind now. UNAVAILABLE reason NOT_JOINED: join (again)
  // first, then repeat. INVALID_ARGUMENT reason NOT_RANK_0, BAD_DIGESTS or BAD_SUBSET, FAILED_PRECONDITION reason
  // MODEL_MISMATCH or LAYOUT_MISMATCH, or an error of VersionLedger.
  absl::StatusOr<int> OnPublish(const Publication& publication, absl::Time now);
  // Records that the trainer reports the run as complete; `last` is its last version. Every member learns it, also
  // members that join later, until a new trainer begins. UNAVAILABLE reason NOT_JOINED: join (again) first, then
  // repeat. Otherwise the errors of VersionLedger::Complete.
  absl::Status OnComplete(const MemberId& member, const PolicyVersion& last);
  // Returns the number of receivers that are behind now. FAILED_PRECONDITION reason NO_VERSION before the first
  // publication.
  absl::StatusOr<int> OnTrigger(absl::Time now);
  // NOT_FOUND reason UNKNOWN_MEMBER.
  absl::Status OnEvict(const std::string& replica_id, int32_t rank, const std::string& reason, absl::Time now);

  // Call when the loop was stopped for this long and read no messages: the deadlines of all members begin anew.
  void OnBlocked(absl::Duration waited, absl::Time now);
  // Call when NextDeadline() has come.
  void Tick(absl::Time now);
  absl::Time NextDeadline() const;

  std::vector<Action> TakeActions();

  const Membership& membership() const { return membership_; }
  const VersionLedger& ledger() const { return ledger_; }
  const SyncCoordinator& coordinator() const { return coordinator_; }
  Directory CurrentDirectory() const;

 private:
  ControlPlane(const Options& options, VersionLedger ledger);

  absl::Status Admit(SessionId session, Hello hello, absl::Time now);
  absl::Status AdmitTrainer(const Hello& hello, absl::Time now);
  // OK if this rank's model and layouts are those of the group to which it has been admitted.
  absl::Status CheckFitsGroup(const Hello& hello) const;
  // The number of digests that a version of this trainer has.
  absl::StatusOr<int64_t> CountDigests(const Hello& hello);
  void AdoptModel(const std::shared_ptr<const Manifest>& model, absl::Time now);
  void Apply(const std::vector<MemberChange>& changes, absl::Time now);
  void Close(const MemberChange& change);
  void SetHeld(SessionId session, const std::string& why);
  // Records the version that a rollouter claims to serve; `claim` is the ledger's verdict on it.
  void Believe(SessionId session, PolicyVersion claimed, uint64_t digest, const absl::Status& claim);
  // Evicts every member that claims a later version of the epoch of `newest`, which has just been published.
  void ExpelImpossible(PolicyVersion newest, absl::Time now);
  void Expel(const MemberKey& key, const absl::Status& why, absl::Time now);
  // Reports the new state of a member's replica, or of the sources, to the coordinator. `reason`: why, if it is gone.
  void Refresh(const MemberKey& key, const std::string& reason, absl::Time now);
  void RefreshReplica(const std::string& replica_id, const std::string& reason, absl::Time now);
  void RefreshSources(absl::Time now);
  void BroadcastDirectory();
  void Emit(AttemptOutput output);
  void Send(const MemberId& to, Command command);

  Options options_;
  VersionLedger ledger_;
  Membership membership_;
  TrainerGroup trainer_;
  SyncCoordinator coordinator_;
  std::shared_ptr<const Manifest> model_;  // the trainer's; null before a trainer has joined this process
  std::optional<PlanCache> plans_;         // for model_
  Directory last_directory_;
  std::vector<Action> actions_;
};

}  // namespace syncopate::synchronizer
