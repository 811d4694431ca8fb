#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/mutex.h"
#include "trainer/data/evaluation.h"
#include "trainer/data/group_ledger.h"
#include "trainer/data/prompts.h"
#include "trainer/data/record_codec.h"
#include "trainer/data/rollout_roster.h"
#include "trainer/data/trajectory_log.h"

namespace syncopate::trainer {

// The trainer's end of one rollouter's stream. Called with no lock held, from any thread; must not block. Once the
// stream is over, calls do nothing.
class RolloutSink {
 public:
  struct Ack {
    LeaseId lease;
    GroupLedger::Result result = GroupLedger::Result::kAccepted;  // never kPending
    absl::Status error = {};
  };
  virtual ~RolloutSink() = default;
  virtual void SendLease(const Lease& lease) = 0;
  virtual void SendAck(const Ack& ack) = 0;
  virtual void SendRevoke(const LeaseId& lease, const std::string& reason) = 0;  // UPPER_SNAKE_CASE
  virtual void Close(const absl::Status& why) = 0;
};

// All data of a training run: prompts, leases, accepted groups, their log, staleness, evaluation. A thread-safe shell
// round GroupLedger and Evaluation (which decide) and TrajectoryLog (which remembers). What a rollouter is told was
// accepted is durable; what TakeBatch returns is durable as taken.
//
// The step thread's loop, in this order:
//   OnPublished(v) before anybody is told of v; AwaitBatch; TakeBatch; train; OnStepDone; OnPublished(next) ...
// Snapshot and StartEvaluation belong between OnStepDone and the next TakeBatch. No lock is held during disk or
// network calls.
class TrainingData {
 public:
  struct Options {
    GroupLedger::Options ledger;
    TrajectoryLog::Options log;
    int64_t evaluation_prompts = 256;
    int64_t evaluation_samples_shown = 4;
    uint64_t evaluation_seed = 999;
    SamplingParams evaluation_sampling;              // greedy
    absl::Duration log_timeout = absl::Seconds(30);  // longest wait for the disk

    absl::Status Validate() const;  // INVALID_ARGUMENT (reason BAD_OPTION or BAD_OPTIONS)
  };
  // All borrowed; they must outlive this.
  struct Parts {
    FileSystem* files = nullptr;
    const RecordCodec* codec = nullptr;
    const Clock* clock = nullptr;
    PromptSource* prompts = nullptr;
    const PromptSource* evaluation_prompts = nullptr;
  };
  // Where the trainer starts: its version, what Snapshot() gave at that step ("" if there is no checkpoint), and the
  // rollouters of the run so far.
  struct Start {
    PolicyVersion version;
    std::string run_id;
    std::string snapshot;
    RolloutRoster roster = {};
  };

  struct Batch {
    PolicyVersion produces;
    bool is_replay = false;           // the repetition of a step that the log holds
    std::vector<SharedGroup> groups;  // by prompt
    StalenessTally staleness;
  };
  struct DataSnapshot {
    std::string bytes;                  // a DataState, as the codec writes it
    uint64_t oldest_needed_record = 0;  // log records below it are part of this checkpoint
  };
  struct RolloutView {
    std::string replica_id;
    std::string incarnation;
    PolicyVersion serving;
    int64_t leased_groups = 0;
    int64_t credits = 0;
    int64_t accepted_groups = 0;
    int64_t invalid_groups = 0;
    int64_t returned_groups = 0;    // leases that it handed back
    int64_t stalled_groups = 0;     // taken from it because they came no further; it gets none while this is above 0
    double quarantine_seconds = 0;  // it gets no leases for so long; 0: it does
    std::string last_fault;         // why its last answers were of no use; "" if the last one was
  };
  struct Status {
    PolicyVersion version;
    Explanation explanation;                 // waiting_for may be "evaluation" or "disk" too
    GroupLedger::Counters groups;            // of this life, as `invalid` and `staleness` are
    TrainingSums sums;                       // of the whole run
    std::map<std::string, int64_t> invalid;  // answers that were refused, by reason
    int64_t quarantines = 0;                 // that have begun
    int64_t stalled = 0;                     // leases taken back because they came no further, of evaluation too
    int64_t timed_out = 0;                   // or because they were too old
    int64_t queued_groups = 0;
    int64_t leased_groups = 0;
    int64_t staleness_bound = 0;
    StalenessTally staleness;  // of all batches of this life
    std::vector<RolloutView> rollouters;
  };

  // Opens the log, rebuilds the data position from it and the snapshot, and makes what that drops durable.
  // INVALID_ARGUMENT for options; DATA_LOSS (reason BAD_SNAPSHOT, BAD_RECORD or LOG_INCONSISTENT) if log and checkpoint
  // cannot be read or do not belong together; the log's own errors. Blocks for the disk.
  static absl::StatusOr<std::unique_ptr<TrainingData>> Open(const Options& options, const Parts& parts,
                                                            const Start& start);
  ~TrainingData();  // Stop()

  // -- The step thread.
  // OK as soon as TakeBatch has one to give. DEADLINE_EXCEEDED (reason NO_BATCH): ask again; INVALID_ARGUMENT
  // (the reason of PromptSource::failure()): no prompt will come any more; OUT_OF_RANGE (reason
  // DATA_ENDED): there will be none; CANCELLED (reason STOPPED).
  absl::Status AwaitBatch(absl::Time deadline);
  // The next batch, its take durable; the errors of AwaitBatch without a wait, and the disk's: the same batch comes
  // with the next call.
  absl::StatusOr<Batch> TakeBatch();
  void OnStepDone();
  void OnPublished(const PolicyVersion& version);
  // UNAVAILABLE (reason TAKE_PENDING) while the disk refuses the next batch's take: the data are between two steps
  // then.
  absl::StatusOr<DataSnapshot> Snapshot() const;
  // Deletes log files that no kept checkpoint needs: give the least oldest_needed_record of those that are kept.
  void PruneLog(uint64_t oldest_needed_record) { log_->PruneBefore(oldest_needed_record); }

  // Asks rollouters that serve `version` for answers to the evaluation prompts, before any training lease. Replaces an
  // evaluation that is not finished.
  void StartEvaluation(const PolicyVersion& version);
  // Its result when all prompts are answered. DEADLINE_EXCEEDED (reason EVALUATING): ask again; ABORTED (reason
  // OVERTAKEN): every rollouter serves a newer version, the evaluation is over; FAILED_PRECONDITION (reason
  // NO_EVALUATION); CANCELLED (reason STOPPED).
  absl::StatusOr<EvaluationResult> WaitForEvaluation(absl::Time deadline);
  // An evaluation is under way, and somebody serves its version.
  bool EvaluationIsServed() const;

  // -- Rollouters. Calls for a session that is over do nothing.
  // FAILED_PRECONDITION (reason RUN_MISMATCH) if the rollouter belongs to another run, INVALID_ARGUMENT (reason
  // NOT_A_ROLLOUTER), CANCELLED (reason STOPPED). An older stream of the same replica is closed.
  absl::StatusOr<SessionId> Connect(const MemberId& member, const std::string& run_id,
                                    std::shared_ptr<RolloutSink> sink);
  void OnServing(SessionId session, const PolicyVersion& version);
  void OnCredits(SessionId session, int32_t groups);
  void OnWork(SessionId session, const RolloutRoster::Work& work);
  // These leases have come further; those that the session does not hold are ignored.
  void OnProgress(SessionId session, const std::vector<LeaseId>& leases);
  void Submit(SessionId session, TrajectoryGroup group);  // answered by exactly one Ack while connected
  // The rollouter cannot finish it; CANCELLED, UNAVAILABLE and ABORTED are no fault of the prompt.
  void ReturnLease(SessionId session, const LeaseId& lease, const absl::Status& why);
  // A submission that could not be decoded: acknowledged as invalid, the prompt is leased again.
  void Reject(SessionId session, const LeaseId& lease, const absl::Status& why);
  void Disconnect(SessionId session);  // leases go to others at once

  Status GetStatus() const;
  // Every rollouter process of the run.
  RolloutRoster GetRoster() const;
  // The version that the trainer is at, and its epoch.
  PolicyVersion version() const;

  // Wakes all waiters, closes all streams, writes what was handed to the log. Idempotent; blocks for the disk.
  void Stop();

 private:
  using Ledger = GroupLedger;
  // What is to be done once the lock is free.
  struct Actions {
    std::vector<std::pair<std::shared_ptr<RolloutSink>, Lease>> leases;
    std::vector<std::pair<std::shared_ptr<RolloutSink>, RolloutSink::Ack>> acks;
    std::vector<std::pair<std::shared_ptr<RolloutSink>, Revocation>> revocations;
    std::vector<DropRecord> drops;
    std::shared_ptr<RolloutSink> closed;
  };

  TrainingData(const Options& options, const Parts& parts, std::string run_id);
  static absl::Status StoppedError();
  absl::Status OpenLog(const Start& start);
  TrainingSums SumsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status LogRestoredDrops();

  // Leases that have stalled or are too old, if it is time to look; then leases that may go out, and records that
  // nobody waits for.
  void CollectLocked(Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExpireLocked(absl::Time now, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ExpiryIsDueLocked(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What the log answered to the latest record.
  void NoteDiskLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExplainDiskLocked(Explanation* explanation) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DisconnectLocked(SessionId session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<RolloutSink> SinkLocked(SessionId session) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What an answer was worth tells on who gave it.
  void NoteAnswerLocked(SessionId session, const absl::Status& judgement) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The session gives up a lease; gives when that was issued, if the session held it.
  std::optional<absl::Time> TakeBackLocked(SessionId session, const LeaseId& lease, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SayQuarantinedLocked(SessionId session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Ledger::Verdict JudgeLocked(SessionId session, const SharedGroup& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(Actions actions);

  void OnDurable(const LeaseId& lease, const absl::Status& status, uint64_t sequence);
  // For waiters: nobody else may have anything to say.
  void LookAtLeases();
  bool HasBatchLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NoBatchLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Batch> MakeDurable(Ledger::Take take);

  const Options options_;
  const Parts parts_;
  const std::string run_id_;

  mutable Mutex mutex_;
  std::unique_ptr<Ledger> ledger_ ABSL_GUARDED_BY(mutex_);
  std::optional<Evaluation> evaluation_ ABSL_GUARDED_BY(mutex_);
  // Of earlier lives; but counted_to is that of what the ledger has counted since as well.
  TrainingSums sums_before_ ABSL_GUARDED_BY(mutex_);
  int64_t evaluations_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time evaluation_since_ ABSL_GUARDED_BY(mutex_);
  std::map<SessionId, std::shared_ptr<RolloutSink>> sinks_ ABSL_GUARDED_BY(mutex_);
  RolloutRoster roster_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> invalid_ ABSL_GUARDED_BY(mutex_);  // by reason, all of which are ours
  int64_t quarantines_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t stalled_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t timed_out_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time expiry_looked_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time no_expiry_before_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // Who waits for a record to become durable.
  std::map<LeaseId, std::vector<SessionId>> waiting_acks_ ABSL_GUARDED_BY(mutex_);
  // While the log's disk refuses what is to be written down.
  struct DiskTrouble {
    absl::Status why;
    absl::Time since, last;
  };
  std::optional<DiskTrouble> disk_ ABSL_GUARDED_BY(mutex_);
  // A take that the disk refused; its groups are taken, but not yet durably.
  std::optional<Ledger::Take> refused_take_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;

  std::unique_ptr<TrajectoryLog> log_;  // set once by Open; last, so that its thread ends first
};

}  // namespace syncopate::trainer
