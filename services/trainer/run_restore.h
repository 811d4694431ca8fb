#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "services/daemon/daemon.h"
#include "services/trainer/train_device.h"
#include "trainer/checkpoint/checkpoint_store.h"
#include "trainer/record/identity_file.h"

namespace syncopate::trainerd {

// What a trainer finds in its run directory when it starts: the run's identity and its checkpoints. Not thread-safe;
// every call blocks for the disk.
class RunRestore {
 public:
  struct Restored {
    PolicyVersion version;      // of the checkpoint; none without one
    std::string data_snapshot;  // "" without one
  };

  // Opens the checkpoint store and copies the model's description and fingerprint to the run directory, so that the
  // run can be resumed and exported when model.path is gone. `daemon` and `device` must outlive the result.
  // FAILED_PRECONDITION (reason RUN_DIR_TAKEN) if the directory contains a run and run.resume is not set; the errors of
  // the store and of the disk.
  static absl::StatusOr<std::unique_ptr<RunRestore>> Open(daemon::Daemon* daemon, const TrainDevice* device);

  // Restores the policy from the checkpoint of the highest version that verifies; damaged ones are logged and skipped.
  // Restores nothing without run.resume, or if no checkpoint exists yet.
  absl::StatusOr<Restored> RestoreLatest();
  // Call it after the epoch of this process is written to disk: restores a checkpoint that another trainer, which was
  // still running, has saved since `restored`. The log continues from that checkpoint.
  absl::StatusOr<Restored> RestoreNewer(Restored restored);

  // The highest epoch that the identity file or a checkpoint names.
  absl::StatusOr<int64_t> HighestEpoch() const;

  trainer::CheckpointStore* checkpoints() { return checkpoints_.get(); }
  const trainer::IdentityFile& identity_file() const { return identity_file_; }

 private:
  RunRestore(daemon::Daemon* daemon, const TrainDevice* device);

  daemon::Daemon* const daemon_;
  const TrainDevice* const device_;
  const trainer::IdentityFile identity_file_;  // <run.dir>/state/trainer/identity.json
  std::unique_ptr<trainer::CheckpointStore> checkpoints_;
};

}  // namespace syncopate::trainerd
