#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "base/mutex.h"
#include "base/status.h"
#include "trainer/data/training_data.h"
#include "trainer/loop/phase_times.h"
#include "trainer/loop/report_queue.h"
#include "trainer/loop/run_observer.h"
#include "trainer/staging/weight_stager.h"
#include "trainer/step/policy.h"

namespace syncopate::trainer {

// Stages versions and hands them to receivers beside the steps. For the step thread, but for what says otherwise; a
// `version` is the one that the policy is at.
//
//   none --Launch--> staging --digests are there--> published --Launch--> staging ...
//                       |------an error-----> failed: no version follows
//
// The digests are awaited by a thread of `queue`, which then publishes the version. The step thread waits for them
// where it calls Await(), and before the next Launch. A report that is given to RecordStep() while its version is being
// staged is passed on when that has ended.
class PolicyPublisher {
 public:
  // All borrowed; they must outlive this.
  struct Parts {
    Policy* policy;
    WeightStager* stager;  // of `policy`
    TrainingData* data;
    RunObserver* observer;  // called by the queue's thread
    ReportQueue* queue;
    PhaseTimes* phases;
    // Tells the synchronizer of a staged version; does not block. Called by the queue's thread.
    std::function<void(Publication)> publish;
  };
  explicit PolicyPublisher(Parts parts) : parts_(std::move(parts)) {}

  // Begins to stage the present weights, unless that was done for `version`, after Await(), whose errors it returns.
  absl::Status Launch(const PolicyVersion& version);
  // Until what was launched is published, and reports before this call are passed on. NON_FINITE: training has spoilt
  // the weights; else the stager's error. After an error nothing more can be launched.
  absl::Status Await();
  // Launch, then Await.
  absl::Status Publish(const PolicyVersion& version);
  // The error of Await() if it is known by now; does not wait.
  absl::Status failure() const;
  // Whether the policy's weights may be saved: staging looks at every version, but not every step is published. OK for
  // a version that is being staged: then AwaitFinite() tells. NON_FINITE names the tensor.
  absl::Status CheckWeights(const PolicyVersion& version) const;
  // Waits for the end of the staging of `version`, if it is being staged, and returns its error. Any thread but the
  // queue's.
  absl::Status AwaitFinite(const PolicyVersion& version) const;
  PolicyVersion launched() const;   // the last one; none: nothing yet
  PolicyVersion published() const;  // the last one; none: nothing yet

  // Fills in what the staging of report.version gave, and passes the report on; drops it if a staging has failed.
  void RecordStep(StepReport report);
  // Adds the time that the policy's changes have waited for a staging since the last call to the phase "stage"; returns
  // it.
  double AccountUpdateWaits();
  // How long the step thread has waited for stagings since the last call: in this class, and in changes of the policy.
  double TakeWaitSeconds();

 private:
  // What is said of `version` when it is staged, but for what staging gives.
  absl::StatusOr<Publication> Describe(const PolicyVersion& version) const;
  void Finish(Publication publication);  // by the queue's thread
  void AddWait(double seconds);

  const Parts parts_;
  double wait_seconds_ = 0;  // of the step thread
  mutable Mutex mutex_;
  PolicyVersion launched_ ABSL_GUARDED_BY(mutex_);
  bool is_staging_ ABSL_GUARDED_BY(mutex_) = false;         // launched_
  WeightStager::Staged published_ ABSL_GUARDED_BY(mutex_);  // the last one
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);             // of launched_
};

}  // namespace syncopate::trainer
