#pragma once

#include <cstdint>
#include <functional>
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
#include "trainer/data/data_status.h"
#include "trainer/data/disk_trouble.h"
#include "trainer/data/evaluation_series.h"
#include "trainer/data/group_ledger.h"
#include "trainer/data/lease_desk.h"
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
// round LeaseDesk (which decides, by GroupLedger and Evaluation) and TrajectoryLog (which remembers). What a rollouter
// is told was accepted is durable; what TakeBatch returns is durable as taken.
//
// The step thread's loop, in this order:
//   RecordPublished(v) before any process hears of v; AwaitBatch; TakeBatch; train; FinishStep; RecordPublished(next)
// Supervised steps come first and need no publication.
// Snapshot and StartEvaluation belong between FinishStep and the next TakeBatch. No lock is held during disk or network
// calls.
class TrainingData {
 public:
  struct Options {
    GroupLedger::Options ledger;
    TrajectoryLog::Options log;
    EvaluationOptions evaluation;
    bool evaluation_only = false;  // no training lease goes out
    int64_t judge_tokens = 0;      // no lease goes out when the run's judge has used so many; 0: no limit
    absl::Duration log_timeout = absl::Seconds(30);  // longest wait for the disk

    absl::Status Validate() const;  // INVALID_ARGUMENT (reason BAD_OPTIONS)
  };
  // All borrowed; they must outlive this.
  struct Parts {
    FileSystem* files = nullptr;
    const RecordCodec* codec = nullptr;
    const Clock* clock = nullptr;
    PromptSource* prompts = nullptr;
    const PromptSource* evaluation_prompts = nullptr;
    // Called when the log has a drop of a group that had been answered; `at`: the trainer's version then. From any
    // thread, with no lock held; must not block. May be null.
    std::function<void(const DropRecord& drop, const PolicyVersion& at)> on_dropped = nullptr;
  };
  // Where the trainer starts: its version, what Snapshot() gave at that step ("" if there is no checkpoint), and the
  // rollouters of the run so far.
  struct Start {
    PolicyVersion version;
    std::string run_id;
    std::string snapshot;
    RolloutRoster roster = {};
    bool begin = true;  // false: the owner calls Begin() before the first connection and the first batch
  };

  struct Batch {
    PolicyVersion produces;
    bool is_replay = false;           // the repetition of a step that the log contains
    bool supervised = false;          // the groups are prompts with the data's own answers
    std::vector<SharedGroup> groups;  // by prompt
    StalenessTally staleness;
    std::map<GroupId, PromptOrigin> origins = {};  // as GroupLedger::Take
  };
  struct DataSnapshot {
    std::string bytes;                  // a DataState, as the codec writes it
    uint64_t oldest_needed_record = 0;  // log records below it are part of this checkpoint
  };
  using RolloutView = trainer::RolloutView;
  using Status = DataStatus;

  // Opens the log, rebuilds the data position from it and the snapshot, and begins.
  // INVALID_ARGUMENT for options; DATA_LOSS (reason BAD_SNAPSHOT, BAD_RECORD or LOG_INCONSISTENT) if log and checkpoint
  // cannot be read or do not belong together; the log's own errors. Blocks for the disk.
  static absl::StatusOr<std::unique_ptr<TrainingData>> Open(const Options& options, const Parts& parts,
                                                            const Start& start);
  // Makes durable what the restore has dropped; until then no record is added to the log. Once. The log's errors.
  absl::Status Begin();
  ~TrainingData();  // Stop()

  // -- The step thread.
  // OK as soon as TakeBatch can return a batch. DEADLINE_EXCEEDED (reason NO_BATCH): ask again;
  // INVALID_ARGUMENT (the reason of PromptSource::failure() or GroupLedger::failure()): no batch will come any more;
  // OUT_OF_RANGE (reason DATA_ENDED): there will be none; CANCELLED (reason STOPPED).
  absl::Status AwaitBatch(absl::Time deadline);
  // Whether the next batch is the repetition of a step that the log contains.
  bool RepeatsNext() const;
  // The next batch, its take durable; the errors of AwaitBatch without a wait, and the disk's: the same batch comes
  // with the next call.
  absl::StatusOr<Batch> TakeBatch();
  void FinishStep();  // the batch that was taken last is trained
  void RecordPublished(const PolicyVersion& version);
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
  // Whether an evaluation is under way and a rollouter serves its version.
  bool EvaluationIsServed() const;
  // The newest published version that a rollouter serves; none if there is no such rollouter.
  PolicyVersion NewestServed() const;
  // No lease goes out and no answer is accepted from now on: what the log contains when this returns is all of the
  // run's. Answers are told that their lease has expired; streams stay. Idempotent; blocks for the disk.
  void CloseIntake();

  // -- Rollouters. Calls for a session that is over do nothing.
  // FAILED_PRECONDITION (reason RUN_MISMATCH) if the rollouter belongs to another run, INVALID_ARGUMENT (reason
  // NOT_A_ROLLOUTER), CANCELLED (reason STOPPED). An older stream of the same replica is closed.
  absl::StatusOr<SessionId> Connect(const MemberId& member, const std::string& run_id,
                                    std::shared_ptr<RolloutSink> sink);
  // `pinned`: RolloutSession::pinned.
  void SetServing(SessionId session, const PolicyVersion& version, const PolicyVersion& pinned = {});
  // `no_rewards`: why the rollouter can have none, and so asks for nothing; "": it can.
  void SetCredits(SessionId session, int32_t groups, const std::string& no_rewards = "");
  void SetWork(SessionId session, const RolloutRoster::Work& work);
  // See RolloutSessions::SetAway.
  void SetAway(SessionId session, bool away);
  // Ends the stream of a session with this error.
  void Evict(SessionId session, const absl::Status& why);
  // These leases made progress; leases that the session does not hold are ignored.
  void RecordProgress(SessionId session, const std::vector<LeaseId>& leases);
  // Tokens of an unfinished answer, which are kept for the lease that follows if this one is lost.
  void RecordPart(SessionId session, const LeaseId& lease, const AnswerPart& part);
  void Submit(SessionId session, TrajectoryGroup group);  // answered by exactly one Ack while connected
  // The rollouter cannot finish it; CANCELLED, UNAVAILABLE and ABORTED are no fault of the prompt.
  void ReturnLease(SessionId session, const LeaseId& lease, const absl::Status& why);
  // A submission that could not be decoded: acknowledged as invalid, the prompt is leased again.
  void Reject(SessionId session, const LeaseId& lease, const absl::Status& why);
  void Disconnect(SessionId session);  // leases go to others at once

  Status GetStatus() const;
  SizingInputs GetSizingInputs() const;
  TrainingSums GetSums() const;  // of the whole run; the batch that was taken last counts as trained
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
  absl::Status LogRestoredDrops();
  TrainingSums SumsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<RolloutSink> FindSinkLocked(SessionId session) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Collects leases to send or to revoke now, and records that no caller waits for.
  void CollectLocked(Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(Actions actions);
  // `change(&actions)` under the lock, then, without it, what it has made due.
  template <typename Change>
  void Decide(const Change& change) ABSL_LOCKS_EXCLUDED(mutex_);
  // Called by threads that wait, as there may be no other event that would review leases.
  void ReviewLeases();

  void CountDrop(DropReason reason, uint64_t sequence) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReportDrop(const DropRecord& drop) const ABSL_LOCKS_EXCLUDED(mutex_);
  // `record`: what the log was given.
  void FinishSubmission(const LeaseId& lease, const LogRecord& record, const absl::Status& written, uint64_t sequence);
  bool HasBatchLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AwaitReadyBatch(absl::Time deadline);
  absl::Status NoBatchLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Batch> LogTake(Ledger::Take take);

  const Options options_;
  const Parts parts_;
  const std::string run_id_;

  mutable Mutex mutex_;
  std::unique_ptr<LeaseDesk> desk_ ABSL_GUARDED_BY(mutex_);  // set once by Open
  // Sums of earlier incarnations. Exceptions: counted_to includes what the ledger has counted since, and groups that
  // were skipped or given up are counted here alone.
  TrainingSums sums_before_ ABSL_GUARDED_BY(mutex_);
  std::map<SessionId, std::shared_ptr<RolloutSink>> sinks_ ABSL_GUARDED_BY(mutex_);
  // The sessions that wait for the acknowledgement of a lease until its record is durable.
  std::map<LeaseId, std::vector<SessionId>> waiting_acks_ ABSL_GUARDED_BY(mutex_);
  DiskTrouble disk_ ABSL_GUARDED_BY(mutex_);
  // A take that the disk refused; its groups are taken, but not yet durably.
  std::optional<Ledger::Take> refused_take_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool intake_closed_ ABSL_GUARDED_BY(mutex_) = false;

  std::unique_ptr<TrajectoryLog> log_;  // set once by Open; last, so that its thread ends first
};

}  // namespace syncopate::trainer
