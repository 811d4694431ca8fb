#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/trajectory.h"
#include "rollouter/reward/group_score.h"
#include "rollouter/reward/remote_scorer.h"
#include "rollouter/reward/reward.h"

namespace syncopate::rollouter {

// Gives finished groups their rewards, away from the thread that generates them: on a thread of its own, and by asking
// those outside this process. How a group is judged is GroupScore's; this is its shell. Thread-safe.
class Scorer {
 public:
  struct Options {
    RewardParameters parameters = {};
    ScoringRules rules = {};
    std::string reward = "dense";    // the run's: what Availability() speaks of. Leases may name others
    TextDecoder decode = nullptr;    // null: there is no text, and rewards of text are refused
    RemoteScorer* http = nullptr;    // borrowed, must outlive this; null: leases that ask for them are refused
    RemoteScorer* python = nullptr;  // the same
  };
  using Done = std::function<void(absl::StatusOr<TrajectoryGroup>)>;

  // INVALID_ARGUMENT, or errors of RewardPlan::Create for `reward`.
  static absl::StatusOr<std::unique_ptr<Scorer>> Create(const Options& options);
  ~Scorer();  // Stop
  Scorer(const Scorer&) = delete;
  Scorer& operator=(const Scorer&) = delete;

  // Whether a lease of this reward can be judged at all: errors of RewardPlan::Create, FAILED_PRECONDITION (reason
  // NO_SCORER) if it needs somebody whom this process does not know. Cheap after the first time.
  absl::Status Check(const std::string& reward);
  // Judges what the engine made of `lease`; does not block. `id` names it for Cancel and is never used twice at once.
  // `done` is called once, on the scorer's thread, with the group and its rewards or with an error of GroupScore, or
  // CANCELLED; it may take milliseconds.
  void Score(const std::string& id, Lease lease, TrajectoryGroup group, Done done);
  // Ends the judging of `id` soon with CANCELLED; unknown ids are ignored.
  void Cancel(const std::string& id);
  // Whether groups of the run's reward would be judged now: UNAVAILABLE while somebody is away who is needed.
  absl::Status Availability() const;
  // Called after that has changed, on any thread; must not call back. Set it once, before the first lease.
  void SetAvailabilityListener(std::function<void()> changed);

  // Ends what is being judged with CANCELLED, and joins the thread. What comes later ends at once. Idempotent. Blocks
  // for as long as a built-in reward takes.
  void Stop();

 private:
  struct Job {
    std::shared_ptr<const RewardPlan> plan;
    std::unique_ptr<GroupScore> score;
    Done done;
  };
  // What the thread is to do. Outlives the scorer in the hands of those outside who may still answer.
  struct Inbox {
    // False if nobody will look at it any more.
    bool Post(std::function<void()> event);

    Mutex mutex;
    std::deque<std::function<void()>> events ABSL_GUARDED_BY(mutex);
    std::shared_ptr<const std::function<void()>> listener ABSL_GUARDED_BY(mutex);
    bool stopping ABSL_GUARDED_BY(mutex) = false;
  };

  Scorer(const Options& options, RewardRegistry registry);
  absl::StatusOr<std::shared_ptr<const RewardPlan>> FindPlan(const std::string& reward);
  absl::Status CheckRemotes(const RewardPlan& plan) const;
  RemoteScorer* GetRemote(GroupScore::Remote remote) const {
    return remote == GroupScore::Remote::kHttp ? options_.http : options_.python;
  }
  void Loop();
  absl::Time RunDueJobs();
  void Advance(const std::string& id, Job* job, absl::Time now);
  void Call(const std::string& id, GroupScore::Call call);
  void OnAnswer(const std::string& item, const absl::StatusOr<RemoteScorer::Rewards>& rewards);
  void End(const std::string& id, absl::StatusOr<TrajectoryGroup> result);

  const Options options_;
  const RewardRegistry registry_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  std::map<std::string, Job> jobs_;             // the thread's own
  std::map<std::string, std::string> callers_;  // item -> job; the thread's own
  mutable Mutex plans_mutex_;
  std::map<std::string, std::shared_ptr<const RewardPlan>> plans_ ABSL_GUARDED_BY(plans_mutex_);
  Mutex join_mutex_;
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace syncopate::rollouter
