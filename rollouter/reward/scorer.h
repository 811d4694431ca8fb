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

// Computes the rewards of finished groups on a thread of its own, and calls remote scorers, so that the engine's thread
// does not wait. `GroupScore` decides how a group is judged; `Scorer` supplies its thread, clock and calls.
// Thread-safe.
class Scorer {
 public:
  struct Options {
    RewardParameters parameters = {};
    ScoringRules rules = {};
    std::string reward = "dense";    // the run's reward, which Availability() reports on; a lease may name another
    TextDecoder decode = nullptr;    // null: there is no text, and rewards that read text are refused
    RemoteScorer* http = nullptr;    // borrowed, must outlive this; null: leases that need it are refused
    RemoteScorer* python = nullptr;  // the rules of `http` apply
    RemoteScorer* judge = nullptr;   // the rules of `http` apply
  };
  using Done = std::function<void(absl::StatusOr<TrajectoryGroup>)>;

  // INVALID_ARGUMENT for bad options, errors of RewardPlan::Create and Check for `options.reward`.
  static absl::StatusOr<std::unique_ptr<Scorer>> Create(const Options& options);
  ~Scorer();  // calls Stop
  Scorer(const Scorer&) = delete;
  Scorer& operator=(const Scorer&) = delete;

  // Whether a lease with this reward can be judged at all: errors of RewardPlan::Create, FAILED_PRECONDITION (reason
  // NO_SCORER) if it needs a remote scorer that is not configured. The result is cached.
  absl::Status Check(const std::string& reward);
  // Judges the group that the engine generated for `lease`; does not block. `id` names the job for Cancel and must be
  // unique among the running jobs. `done` is called once with the group and its rewards, with an error of Check or
  // GroupScore, or with CANCELLED. It runs on the scorer's thread and may take milliseconds; after Stop it runs within
  // this call.
  void Score(const std::string& id, Lease lease, TrajectoryGroup group, Done done);
  // Ends the job `id` soon with CANCELLED; an unknown id is ignored.
  void Cancel(const std::string& id);
  // OK if groups of the run's reward can be judged now; UNAVAILABLE, or another error of RemoteScorer::Availability,
  // while a scorer that the reward needs is away. A busy scorer counts as available.
  absl::Status Availability() const;
  // Tokens that the judge has used since it began; 0 without one.
  int64_t judge_tokens() const { return options_.judge == nullptr ? 0 : options_.judge->used_tokens(); }
  // `changed` is called on any thread after the answer of Availability() has changed; it must not call back. Set it
  // once, before the first lease.
  void SetAvailabilityListener(std::function<void()> changed);

  // Ends every job with CANCELLED and joins the thread. A later Score ends at once. Idempotent. Blocks for as long as a
  // built-in reward takes.
  void Stop();

 private:
  struct Job {
    std::shared_ptr<const RewardPlan> plan;
    std::unique_ptr<GroupScore> score;
    Done done;
  };
  // The events for the thread. Shared with the callbacks of remote calls, which may outlive the scorer.
  struct Inbox {
    // Returns false if the thread no longer reads events.
    bool Post(std::function<void()> event);

    Mutex mutex;
    std::deque<std::function<void()>> events ABSL_GUARDED_BY(mutex);
    std::shared_ptr<const std::function<void()>> listener ABSL_GUARDED_BY(mutex);
    bool stopping ABSL_GUARDED_BY(mutex) = false;
  };

  Scorer(const Options& options, RewardRegistry registry);
  absl::StatusOr<std::shared_ptr<const RewardPlan>> FindPlan(const std::string& reward);
  absl::Status CheckRemotes(const RewardPlan& plan) const;
  RemoteScorer* GetRemote(GroupScore::Remote remote) const;
  void Loop();
  absl::Time RunDueJobs();
  void Advance(const std::string& id, Job* job, absl::Time now);
  void Call(const std::string& id, GroupScore::Call call);
  void OnAnswer(const std::string& item, const absl::StatusOr<RemoteScorer::Rewards>& rewards);
  void End(const std::string& id, absl::StatusOr<TrajectoryGroup> result);

  const Options options_;
  const RewardRegistry registry_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  std::map<std::string, Job> jobs_;             // only the thread uses it
  std::map<std::string, std::string> callers_;  // item -> job; only the thread uses it
  mutable Mutex plans_mutex_;
  std::map<std::string, std::shared_ptr<const RewardPlan>> plans_ ABSL_GUARDED_BY(plans_mutex_);
  Mutex join_mutex_;
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace syncopate::rollouter
