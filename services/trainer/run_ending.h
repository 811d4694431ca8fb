#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "services/daemon/daemon.h"
#include "services/trainer/rank_service.h"
#include "services/trainer/trainer_membership.h"
#include "trainer/data/training_data.h"
#include "trainer/loop/step_loop.h"
#include "trainer/record/flow_file.h"
#include "trainer/record/run_reporter.h"

namespace syncopate::trainerd {

// What a run leaves behind and how it ends: the flow sums of all incarnations (state/trainer/flow.pb, written each
// second), summary.json, and the last words to ranks, synchronizer and rollouters. Called by the daemon's main thread
// alone.
class RunEnding {
 public:
  // All borrowed; they must outlive the calls that need them.
  struct Parts {
    trainer::StepLoop* loop = nullptr;
    trainer::TrainingData* data = nullptr;
    trainer::RunReporter* reporter = nullptr;
    TrainerMembership* membership = nullptr;
    RankServiceImpl* ranks = nullptr;       // null without other ranks
    std::function<absl::Status()> refused;  // why this trainer cannot go on; OK if it can
    std::function<void()> show_state;       // updates health and metrics; called repeatedly
    PolicyVersion start;                    // the version at which the loop began
  };

  // Reads the flow sums of earlier incarnations; errors of FlowFile::Read. `may_write` is asked before each write: false
  // once a newer trainer owns the run directory. Blocks for the disk.
  static absl::StatusOr<std::unique_ptr<RunEnding>> Create(daemon::Daemon* daemon, std::function<bool()> may_write);

  // The sums of the run's earlier incarnations.
  const trainer::FlowSums& flow_before() const { return flow_before_; }
  // Once, before the calls below.
  void Attach(Parts parts) { parts_ = std::move(parts); }

  // Whether this process has made a step; repeated steps count.
  bool HasMadeSteps() const { return parts_.loop->GetStatus().version != parts_.start; }
  // Writes the flow sums in the background; `wall_seconds` is this process's share of the run's time.
  void WriteFlowSoon(double wall_seconds) { flow_file_->WriteSoon(FlowSoFar(wall_seconds)); }
  // After the first step: the summary of an earlier incarnation is outdated.
  void RemoveOldSummary() const;
  // Writes flow sums and summary, stops the ranks and leaves the group. After a complete run it tells the synchronizer
  // first and, unless the daemon ends on completion, blocks until the process is asked to stop. Reason FENCED if a
  // newer trainer has taken over; then the files are left unchanged.
  absl::Status Finish(const absl::StatusOr<trainer::StepLoop::Outcome>& outcome, double wall_seconds);

 private:
  RunEnding(daemon::Daemon* daemon, std::function<bool()> may_write);
  trainer::FlowSums FlowSoFar(double wall_seconds) const;
  bool HasSummaryFor(int64_t step, const std::string& status) const;  // trainer::IsSummaryFor
  absl::Status WriteSummary(const std::string& status, const trainer::FlowSums& flow);
  absl::Status FinishFenced();
  // Tells the synchronizer that the run is complete, and waits until the process may end.
  absl::Status AwaitEnd();

  daemon::Daemon* const daemon_;
  std::unique_ptr<trainer::FlowFile> flow_file_;
  trainer::FlowSums flow_before_;
  Parts parts_;
};

}  // namespace syncopate::trainerd
