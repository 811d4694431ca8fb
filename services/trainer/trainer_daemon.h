#pragma once

#include <memory>
#include <set>
#include <string>

#include "base/mutex.h"
#include "base/status.h"
#include "services/daemon/daemon.h"
#include "services/member/weight_service.h"
#include "services/telemetry/card_metrics.h"
#include "services/trainer/prompt_sources.h"
#include "services/trainer/rank_service.h"
#include "services/trainer/run_control.h"
#include "services/trainer/run_ending.h"
#include "services/trainer/run_recorder.h"
#include "services/trainer/run_restore.h"
#include "services/trainer/sample_recorder.h"
#include "services/trainer/train_device.h"
#include "services/trainer/trainer_membership.h"
#include "services/trainer/trainer_service.h"
#include "services/trainer/trajectory_service.h"
#include "trainer/data/training_data.h"
#include "trainer/loop/step_loop.h"
#include "trainer/record/run_reporter.h"

namespace syncopate::trainerd {

// Rank 0 of a trainer, the only rank that other processes see: policy, data, checkpoints, services, membership and the
// step thread.
class TrainerDaemon {
 public:
  // Call it first: compares the configuration with that of the run to be resumed, and logs the changes.
  // FAILED_PRECONDITION (reason FIXED_KEY) if a change is not allowed; nothing has been changed then.
  static absl::Status CheckConfig(const daemon::Daemon& daemon);
  // Trains on `device`. Restores the checkpoint of the highest version that verifies, listens, joins, opens the log.
  // Blocks until the synchronizer has welcomed this trainer. FAILED_PRECONDITION (reason RUN_DIR_TAKEN) if the
  // directory contains a run and run.resume is not set; the errors of the parts.
  static absl::StatusOr<std::unique_ptr<TrainerDaemon>> Start(daemon::Daemon* daemon, TrainDevice device);
  ~TrainerDaemon();

  // Trains until the run is over or the process is asked to stop; then writes summary.json, leaves the run and closes
  // all files. After a complete run it tells the synchronizer first, and, unless the daemon ends on completion, goes on
  // serving until it is asked to stop. OK also after a stop; reason FENCED if a newer trainer has taken over, and then
  // the files are left unchanged.
  absl::Status Run();

 private:
  using Restored = RunRestore::Restored;

  TrainerDaemon(daemon::Daemon* daemon, TrainDevice device);

  // Does the work of Start.
  absl::Status Begin();
  // Ends the other ranks, which attend or still come, with the error that ends this one.
  void EndRanks(const absl::Status& why);
  absl::Status OpenRecords();
  absl::Status OpenPrompts();
  // Starts the services at trainer.listen, and those for the other ranks.
  absl::Status Listen();
  // Makes the service for the other ranks and writes the secret that they must show.
  absl::Status MakeRankService();
  // Writes this rank's address to the run directory, for other ranks that look there.
  absl::Status AnnounceToRanks() const;
  absl::StatusOr<synchronizer::Welcome> Join();
  // Waits for the other ranks, tells them what to begin with, and connects the communicator.
  absl::Status AssembleRanks(const Restored& restored, const synchronizer::Welcome& welcome);
  absl::Status OpenData(const Restored& restored, const synchronizer::Welcome& welcome);
  // Writes the record of the run's configuration.
  absl::Status RecordConfig(const std::string& run_id) const;
  // Before the data begin, which report what a restore has dropped.
  void OpenSamples();
  // Starts the data and lets rollouters in.
  absl::Status BeginWork();
  // Waits while the resume is on trial, then calls BeginWork. False: asked to end before.
  absl::StatusOr<bool> PassTrial();
  absl::Status EndTrial();
  absl::Status OfferModel(const std::string& run_id);
  void OpenTensorBoard(const PolicyVersion& start);
  void ShowMemory();
  // The shared device has become the trainer's, or is about to be given back: what libraries take more then is
  // measured.
  void MeasureTurn(bool begins);
  // The devices of all ranks.
  std::set<std::string> FindCards() const;
  absl::Status OpenExports();
  absl::Status StartLoop(const PolicyVersion& start);
  // Ends the run because this trainer cannot go on; writes a checkpoint unless another trainer has taken over.
  void GiveUp(const absl::Status& why);
  // Updates health and metrics; called repeatedly.
  void ShowState();
  // Works out how many rollouters and what staleness the run could use; takes up to a tenth of a second.
  void ShowSizing();
  absl::Status Refused() const;

  daemon::Daemon* const daemon_;
  const bool on_trial_;  // at the start of this process
  TrainDevice device_;
  RunControl control_;
  std::unique_ptr<RunRestore> restore_;
  PromptSources prompts_;
  std::unique_ptr<trainer::RunReporter> reporter_;
  std::unique_ptr<telemetry::TrainerMetrics> metrics_;
  const std::shared_ptr<telemetry::CardCollector> card_metrics_ = std::make_shared<telemetry::CardCollector>();
  std::unique_ptr<RunRecorder> recorder_;
  std::unique_ptr<SampleRecorder> samples_;  // set by BeginWork; outlives data_, whose threads call it
  std::unique_ptr<member::WeightServiceImpl> weight_service_;
  std::unique_ptr<TrajectoryServiceImpl> trajectory_service_;
  std::unique_ptr<RankServiceImpl> rank_service_;  // null without other ranks
  std::unique_ptr<TrainerServiceImpl> trainer_service_;
  std::string metrics_address_;
  std::unique_ptr<RunEnding> ending_;
  std::unique_ptr<trainer::TrainingData> data_;
  int64_t turn_bytes_ = 0;  // what the trainer has on a shared device in its turn, but for a step's own
  std::unique_ptr<trainer::TurnDesk> turns_;  // null: no rollouter shares the device
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<TrainerMembership> membership_;
  std::unique_ptr<trainer::ExportStore> exports_;  // null: the run cannot export
  std::unique_ptr<trainer::StepLoop> loop_;
  PolicyVersion sized_;  // the version at which ShowSizing() last worked; none before

  mutable Mutex mutex_;
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);  // why this trainer cannot go on
};

}  // namespace syncopate::trainerd
