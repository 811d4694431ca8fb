#include "rollouter/reward/scorer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace syncopate::rollouter {
namespace {

constexpr size_t kMaxPlans = 64;  // a limit against growth; a trainer normally names one or two rewards
constexpr absl::Duration kLongestWait = absl::Hours(1);

absl::Status NoScorer(const std::string& part, const std::string& key) {
  return Error(absl::StatusCode::kFailedPrecondition, "NO_SCORER",
               absl::StrCat("the reward ", part, " is asked for, and ", key, " does not say where"));
}

absl::Status Cancelled() {
  return Error(absl::StatusCode::kCancelled, "SCORING_CANCELLED", "its rewards are not wanted any more");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Scorer>> Scorer::Create(const Options& options) {
  SYNCOPATE_RETURN_IF_ERROR(options.rules.Validate());
  SYNCOPATE_ASSIGN_OR_RETURN(RewardRegistry registry, RewardRegistry::Create(options.parameters));
  // One thread does all the work, so groups, calls and deadlines need no locks among them. The answers of remote
  // scorers arrive through the inbox, which may outlive the scorer.
  std::unique_ptr<Scorer> scorer(new Scorer(options, std::move(registry)));
  SYNCOPATE_RETURN_IF_ERROR(scorer->Check(options.reward));
  for (RemoteScorer* remote : {options.http, options.python, options.judge}) {
    if (remote == nullptr) continue;
    remote->SetAvailabilityListener([inbox = scorer->inbox_] {
      inbox->Post([] {});  // wakes the thread, which calls Advance for every job
      std::shared_ptr<const std::function<void()>> listener;
      {
        MutexLock lock(&inbox->mutex);
        listener = inbox->listener;
      }
      if (listener != nullptr) (*listener)();
    });
  }
  return scorer;
}

Scorer::Scorer(const Options& options, RewardRegistry registry)
    : options_(options), registry_(std::move(registry)), thread_([this] { Loop(); }) {}

Scorer::~Scorer() {
  Stop();
  for (RemoteScorer* remote : {options_.http, options_.python, options_.judge}) {
    if (remote != nullptr) remote->SetAvailabilityListener(nullptr);
  }
}

RemoteScorer* Scorer::GetRemote(GroupScore::Remote remote) const {
  switch (remote) {
    case GroupScore::Remote::kHttp:
      return options_.http;
    case GroupScore::Remote::kPython:
      return options_.python;
    case GroupScore::Remote::kJudge:
      return options_.judge;
  }
  return nullptr;
}

absl::StatusOr<std::shared_ptr<const RewardPlan>> Scorer::FindPlan(const std::string& reward) {
  MutexLock lock(&plans_mutex_);
  auto found = plans_.find(reward);
  if (found != plans_.end()) return found->second;
  SYNCOPATE_ASSIGN_OR_RETURN(RewardPlan plan, RewardPlan::Create(reward, registry_, options_.decode));
  SYNCOPATE_RETURN_IF_ERROR(CheckRemotes(plan));
  // The run's own plan stays, because Availability() looks it up. A job shares the ownership of its plan.
  if (plans_.size() >= kMaxPlans)
    std::erase_if(plans_, [this](const auto& one) { return one.first != options_.reward; });
  return plans_[reward] = std::make_shared<const RewardPlan>(std::move(plan));
}

absl::Status Scorer::CheckRemotes(const RewardPlan& plan) const {
  for (const RewardPlan::Term& one : plan.terms) {
    using Source = RewardTerm::Source;
    if (one.term.source == Source::kHttp && options_.http == nullptr) return NoScorer(one.term.part, "reward.url");
    if (one.term.source == Source::kJudge && options_.judge == nullptr) {
      return NoScorer(one.term.part, "reward.judge_url");
    }
    const bool judged = one.term.name == "math" && !options_.rules.judge.empty();
    if ((one.term.source == Source::kPython || judged) && options_.python == nullptr) {
      return NoScorer(judged ? absl::StrCat("python:", options_.rules.judge) : one.term.part,
                      "environment.address or environment.command");
    }
  }
  return absl::OkStatus();
}

absl::Status Scorer::Check(const std::string& reward) { return FindPlan(reward).status(); }

absl::Status Scorer::Availability() const {
  std::shared_ptr<const RewardPlan> plan;
  {
    MutexLock lock(&plans_mutex_);
    plan = plans_.at(options_.reward);  // Create() inserted it
  }
  for (const RewardPlan::Term& one : plan->terms) {
    absl::Status there;
    if (one.term.source == RewardTerm::Source::kHttp) {
      there = options_.http->Availability("");
    } else if (one.term.source == RewardTerm::Source::kJudge) {
      there = options_.judge->Availability("");
    } else if (one.term.source == RewardTerm::Source::kPython) {
      there = options_.python->Availability(one.term.name);
    } else if (one.term.name == "math" && !options_.rules.judge.empty()) {
      there = options_.python->Availability(options_.rules.judge);
    }
    // A busy scorer counts as available: the number of leases already limits what waits for it.
    if (!there.ok() && !absl::IsResourceExhausted(there)) return there;
  }
  return absl::OkStatus();
}

void Scorer::SetAvailabilityListener(std::function<void()> changed) {
  MutexLock lock(&inbox_->mutex);
  inbox_->listener = changed == nullptr ? nullptr : std::make_shared<const std::function<void()>>(std::move(changed));
}

bool Scorer::Inbox::Post(std::function<void()> event) {
  MutexLock lock(&mutex);
  if (stopping) return false;
  events.push_back(std::move(event));
  return true;
}

void Scorer::Score(const std::string& id, Lease lease, TrajectoryGroup group, Done done) {
  absl::StatusOr<std::shared_ptr<const RewardPlan>> plan = FindPlan(lease.reward);
  // The job is shared because std::function requires a copyable callable.
  auto job = std::make_shared<Job>();
  job->done = done;
  if (plan.ok()) {
    job->plan = *plan;
    job->score = std::make_unique<GroupScore>(id, std::move(lease), std::move(group), job->plan.get(), options_.rules);
  }
  const bool posted = inbox_->Post([this, id, job, known = plan.status()] {
    if (!known.ok()) return job->done(known);
    job->score->JudgeBuiltIn(Clock::Real()->Now());
    Job& placed = jobs_[id] = std::move(*job);
    Advance(id, &placed, Clock::Real()->Now());
  });
  // `done` must be called even if the scorer has stopped.
  if (!posted) done(Cancelled());
}

void Scorer::Cancel(const std::string& id) {
  inbox_->Post([this, id] {
    // The job may have ended in the meantime.
    if (jobs_.count(id) > 0) End(id, Cancelled());
  });
}

void Scorer::Advance(const std::string& id, Job* job, absl::Time now) {
  GroupScore::Actions actions = job->score->OnTick(now, [this](GroupScore::Remote remote, const std::string& reward) {
    return GetRemote(remote)->Availability(reward);
  });
  for (const auto& [remote, item] : actions.cancels) {
    callers_.erase(item);
    GetRemote(remote)->Cancel(item);
  }
  for (GroupScore::Call& call : actions.calls) Call(id, std::move(call));
  if (job->score->done()) End(id, job->score->Finish());
}

void Scorer::Call(const std::string& id, GroupScore::Call call) {
  const std::string item = call.item.id;
  callers_[item] = id;
  auto answered = [this, inbox = inbox_, item](absl::StatusOr<RemoteScorer::Rewards> rewards) {
    inbox->Post([this, item, rewards = std::move(rewards)] { OnAnswer(item, rewards); });
  };
  GetRemote(call.to)->Score(std::move(call.item), std::move(answered));
}

void Scorer::OnAnswer(const std::string& item, const absl::StatusOr<RemoteScorer::Rewards>& rewards) {
  auto caller = callers_.extract(item);
  if (!caller) return;
  auto found = jobs_.find(caller.mapped());
  if (found == jobs_.end()) return;
  const absl::Time now = Clock::Real()->Now();
  found->second.score->OnAnswer(item, rewards, now);
  Advance(caller.mapped(), &found->second, now);
}

void Scorer::End(const std::string& id, absl::StatusOr<TrajectoryGroup> result) {
  auto ended = jobs_.extract(id);
  // The job leaves the map before `done` runs.
  for (const auto& [remote, item] : ended.mapped().score->UnderWay()) {
    callers_.erase(item);
    GetRemote(remote)->Cancel(item);
  }
  ended.mapped().done(std::move(result));
}

absl::Time Scorer::RunDueJobs() {
  const absl::Time now = Clock::Real()->Now();
  absl::Time next = absl::InfiniteFuture();
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    const auto one = job++;  // Advance may erase the job
    const std::string id = one->first;
    Advance(id, &one->second, now);
    auto still = jobs_.find(id);
    if (still != jobs_.end()) next = std::min(next, still->second.score->NextTick());
  }
  return next;
}

void Scorer::Loop() {
  absl::Time next = absl::InfiniteFuture();
  while (true) {
    std::deque<std::function<void()>> events;
    {
      MutexLock lock(&inbox_->mutex);
      Inbox& inbox = *inbox_;
      auto something = [&inbox]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(inbox.mutex) {
        return inbox.stopping || !inbox.events.empty();
      };
      inbox_->mutex.AwaitWithTimeout(Condition(&something), std::min(next - Clock::Real()->Now(), kLongestWait));
      events.swap(inbox_->events);
      // Events posted before Stop still run, so each of their `done` callbacks is called.
      if (inbox_->stopping && events.empty()) break;
    }
    for (const std::function<void()>& event : events) event();
    next = RunDueJobs();
  }
  while (!jobs_.empty()) End(std::string(jobs_.begin()->first), Cancelled());
}

void Scorer::Stop() {
  {
    MutexLock lock(&inbox_->mutex);
    inbox_->stopping = true;
  }
  MutexLock lock(&join_mutex_);
  if (thread_.joinable()) thread_.join();
}

}  // namespace syncopate::rollouter
