#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "trainer/checkpoint/best_checkpoint.h"
#include "trainer/checkpoint/checkpoint_store.h"
#include "trainer/checkpoint/rank_saves.h"
#include "trainer/checkpoint/save_thread.h"
#include "trainer/data/training_data.h"
#include "trainer/loop/loop_control.h"
#include "trainer/loop/phase_times.h"
#include "trainer/loop/policy_publisher.h"
#include "trainer/loop/run_observer.h"
#include "trainer/step/policy.h"

namespace syncopate::trainer {

// Saves a run: copies its state between two steps, writes the copy while further steps are made, keeps the best
// checkpoint, and prunes what no checkpoint needs. Writes only while this trainer's epoch is the newest. Called by the
// step thread: on the CPU the step thread waits for the copy, on a GPU hardly at all (Policy::TakeSnapshot). A thread
// of its own reads and writes the disk.
class CheckpointWriter {
 public:
  static constexpr char kDataFile[] = "data.pb";  // of a checkpoint: the data position

  // All borrowed; they must outlive this.
  struct Parts {
    Policy* policy;
    TrainingData* data;
    CheckpointStore* store;
    const PolicyPublisher* publisher;
    LoopControl* control;
    RunObserver* observer;
    PhaseTimes* phases;
    // The epoch of the newest trainer that has taken over the run directory, as it wrote it down before anything else.
    std::function<absl::StatusOr<int64_t>()> newest_epoch;
    RankSaves* ranks = nullptr;  // the others that `policy` leads; null: there are none
  };
  // The name of a checkpoint, or why there is none: FENCED: a newer trainer writes here; the errors of CheckpointStore,
  // RankSaves and Policy::TakeSnapshot.
  using Done = std::function<void(const absl::StatusOr<std::string>& name)>;

  // `keep` checkpoints stay, and the best one; `epoch` is this trainer's.
  CheckpointWriter(int keep, int64_t epoch, Parts parts)
      : keep_(keep), epoch_(epoch), parts_(std::move(parts)), best_(parts_.store) {}

  // Reads which checkpoint an earlier incarnation found best. Call first.
  void LoadBest();
  const std::optional<BestCheckpoint::Score>& best() const { return best_.best(); }

  // Copies `version`, at which the policy is, and returns; waits for a save that is under way, so that there is one
  // copy at a time: DISK_STUCK as Wait(). The thread that writes calls the observer and then `done` when the checkpoint
  // is durable or has failed. `done` alone gets the error of the call: NON_FINITE: the weights are spoilt; FENCED; the
  // errors of TrainingData::Snapshot. A version that is still being staged is copied, and given up by the thread that
  // writes if its weights turn out not to be finite.
  absl::Status Save(const PolicyVersion& version, Done done);
  // Saves `version` and waits until it is durable.
  absl::StatusOr<std::string> SaveAndWait(const PolicyVersion& version);
  // Waits until no save is under way. DEADLINE_EXCEEDED (reason DISK_STUCK), naming the path, if the disk does not
  // answer: the run cannot go on then, as the thread that writes may be blocked for ever.
  absl::Status Wait() {
    return thread_.Wait([this] { return parts_.store->CheckDisk(); });
  }
  // A version was evaluated, so its checkpoint may be the best one. Does nothing if a newer trainer has taken over.
  void AddScore(const BestCheckpoint::Score& score);
  int64_t saved_step() const { return saved_step_.load(); }  // -1: none by this trainer

 private:
  struct Saved {
    PolicyVersion version;
    uint64_t oldest_needed_record = 0;
  };
  struct Copied {
    CheckpointStore::SaveRequest request;
    std::shared_ptr<const PolicySnapshot> snapshot;  // null: there is none
    uint64_t oldest_needed_record = 0;
  };
  absl::StatusOr<Copied> Copy(const PolicyVersion& version);
  absl::Status CheckNotFenced() const;                                   // by either thread
  void Record(const PolicyVersion& version, const absl::Status& saved);  // by either thread
  // Called by the thread that writes, or before it starts.
  void ShowBest();
  absl::StatusOr<std::string> Write(const Copied& copied);
  void Prune();

  const int keep_;
  const int64_t epoch_;
  const Parts parts_;
  std::atomic<int64_t> saved_step_ = -1;
  // Used by the thread that writes alone.
  BestCheckpoint best_;
  std::deque<Saved> saved_here_;  // by this trainer, oldest first
  SaveThread thread_;             // last: it uses all of the above
};

}  // namespace syncopate::trainer
