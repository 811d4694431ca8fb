#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "base/status.h"
#include "trainer/checkpoint/best_checkpoint.h"
#include "trainer/checkpoint/checkpoint_store.h"
#include "trainer/data/training_data.h"
#include "trainer/loop/loop_control.h"
#include "trainer/loop/phase_times.h"
#include "trainer/loop/policy_publisher.h"
#include "trainer/loop/run_observer.h"
#include "trainer/step/policy.h"

namespace syncopate::trainer {

// Saves a run between two steps, keeps what is best, and prunes what nobody needs. Writes only while this trainer has
// the right to: its epoch is the newest. Of the step thread; calls block for the disk.
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
  };
  // `keep` checkpoints stay, and the best one; `epoch` is this trainer's.
  CheckpointWriter(int keep, int64_t epoch, Parts parts)
      : keep_(keep), epoch_(epoch), parts_(std::move(parts)), best_(parts_.store) {}

  // Goes on from what an earlier life left.
  void LoadBest() { best_.Load(); }
  const std::optional<BestCheckpoint::Score>& best() const { return best_.best(); }

  // The name of the checkpoint of `version`, at which the policy is. NON_FINITE: the weights are spoilt, nothing was
  // written; FENCED: a newer trainer writes here; the errors of CheckpointStore and TrainingData::Snapshot. The
  // observer hears of each.
  absl::StatusOr<std::string> Save(const PolicyVersion& version);
  // A version was evaluated: its checkpoint may be the best one. Nothing if a newer trainer has taken over.
  void AddScore(const BestCheckpoint::Score& score);
  int64_t saved_step() const { return saved_step_; }  // -1: none by this trainer

 private:
  struct Saved {
    PolicyVersion version;
    uint64_t oldest_needed_record = 0;
  };
  absl::Status Write(const PolicyVersion& version);
  absl::Status CheckNotFenced() const;
  void Prune();

  const int keep_;
  const int64_t epoch_;
  const Parts parts_;
  BestCheckpoint best_;
  int64_t saved_step_ = -1;
  std::deque<Saved> saved_here_;  // by this trainer, oldest first
};

}  // namespace syncopate::trainer
