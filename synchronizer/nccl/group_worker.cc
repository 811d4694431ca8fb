#include "synchronizer/nccl/group_worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::synchronizer::nccl {
namespace {

absl::Status Stopping() { return Error(absl::StatusCode::kCancelled, "CANCELLED", "this process is stopping"); }

}  // namespace

absl::Status GroupWorker::Options::Validate() const {
  absl::Duration zero = absl::ZeroDuration();
  if (kept_groups >= 1 && poll_interval > zero && finalize_deadline > zero && drain_deadline > zero) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
               "at least one group is kept, and every interval and deadline is above zero");
}

GroupWorker::GroupWorker(DeviceFactory device, const Options& options)
    : make_device_(std::move(device)), options_(options), thread_([this](const std::stop_token& stop) { Run(stop); }) {}

GroupWorker::~GroupWorker() {
  MutexLock lock(&mutex_);
  stopping_ = true;
  cancelled_ = Stopping();
  thread_.request_stop();
}

void GroupWorker::Submit(Job job) {
  MutexLock lock(&mutex_);
  jobs_.push_back(std::move(job));
}

void GroupWorker::Cancel(int64_t attempt, const absl::Status& why) {
  std::deque<Job> cancelled;  // their `done` is called without the lock
  {
    MutexLock lock(&mutex_);
    if (current_ == attempt && cancelled_.ok()) cancelled_ = why;
    auto kept =
        std::stable_partition(jobs_.begin(), jobs_.end(), [&](const Job& job) { return job.attempt != attempt; });
    std::move(kept, jobs_.end(), std::back_inserter(cancelled));
    jobs_.erase(kept, jobs_.end());
  }
  for (Job& job : cancelled) job.done(why);
}

bool GroupWorker::Has(const std::string& group) const {
  MutexLock lock(&mutex_);
  const bool current = current_.has_value() && current_group_ == group && cancelled_.ok();
  return current || std::ranges::find(names_, group) != names_.end() ||
         std::ranges::find(jobs_, group, &Job::group) != jobs_.end();
}

// One thread makes all NCCL calls: communicators are not thread-safe, and jobs that ran in parallel in different orders
// on two members could wait for each other for ever.
void GroupWorker::Run(const std::stop_token& stop) {
  for (;;) {
    Job job;
    {
      MutexLock lock(&mutex_);
      auto work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !jobs_.empty(); };
      mutex_.Await(Condition(&work));
      if (jobs_.empty()) break;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      current_ = job.attempt;
      current_group_ = job.group;
      if (!stopping_) cancelled_ = absl::OkStatus();
    }
    absl::Status status = Execute(job);
    {
      MutexLock lock(&mutex_);
      current_.reset();
    }
    job.done(std::move(status));
    EndOldGroups(options_.kept_groups);
  }
  EndOldGroups(0);
  device_.reset();
}

absl::Status GroupWorker::Execute(const Job& job) {
  SYNCOPATE_RETURN_IF_ERROR(stuck_);
  if (device_ == nullptr) {
    SYNCOPATE_ASSIGN_OR_RETURN(device_, make_device_());
  }
  absl::StatusOr<Group*> group = Connect(job);
  absl::Status status = group.status();
  if (status.ok()) {
    job.on_connected();
    status = Exchange(job, job.plan.rounds, *group, /*warm_up=*/false);
  }
  if (!status.ok()) Abort(job.group, &status);
  Publish();
  return status;
}

absl::StatusOr<GroupWorker::Group*> GroupWorker::Connect(const Job& job) {
  SYNCOPATE_RETURN_IF_ERROR(Pause(job));
  auto known = std::ranges::find(groups_, job.group, &Group::name);
  if (job.ids.empty()) {
    if (known == groups_.end()) {
      return Error(absl::StatusCode::kUnavailable, reason::kGroupLost,
                   "this member has no communicator of the group; the next attempt forms one");
    }
    // Used most recently, so ended last.
    groups_.splice(groups_.begin(), groups_, known);
    Publish();
    return &groups_.front();
  }
  if (known != groups_.end()) groups_.erase(known);  // some member has lost its communicators
  groups_.push_front({job.group, {}});
  // Other members may finish this transfer, and ask for the next one, before this member does.
  Publish(/*without=*/job.group);
  SYNCOPATE_RETURN_IF_ERROR(FormGroup(job, &groups_.front()));
  return &groups_.front();
}

absl::Status GroupWorker::FormGroup(const Job& job, Group* group) {
  for (const Seat& seat : job.plan.seats) {
    if (seat.communicator >= static_cast<int32_t>(job.ids.size())) {
      return Error(
          absl::StatusCode::kUnavailable, reason::kGroupLost,
          absl::StrFormat("%d communicators are needed, source rank 0 made %d ids; the next attempt forms them",
                          seat.communicator + 1, job.ids.size()));
    }
    SYNCOPATE_ASSIGN_OR_RETURN(auto communicator, device_->Join(job.ids[seat.communicator], seat));
    group->seats.push_back(std::move(communicator));
  }
  SYNCOPATE_RETURN_IF_ERROR(AwaitReady(job, group));
  // NCCL connects two members at their first message. So the first messages are sent here, not while a sync is measured
  // or an engine waits.
  return Exchange(job, job.warm_up, group, /*warm_up=*/true);
}

absl::Status GroupWorker::Exchange(const Job& job, const std::vector<Round>& rounds, Group* group, bool warm_up) {
  for (const Round& round : rounds) {
    if (round.messages.empty()) continue;
    char* base = warm_up ? device_->scratch() : job.base;
    SYNCOPATE_RETURN_IF_ERROR(group->seats[round.seat]->Begin(round.messages, base));
    SYNCOPATE_RETURN_IF_ERROR(AwaitReady(job, group));
    if (warm_up || job.on_arrived == nullptr) continue;
    for (const Transmission& message : round.messages) job.on_arrived(message.range, device_->stream());
  }
  SYNCOPATE_RETURN_IF_ERROR(device_->Mark());
  return AwaitMark(job, group);
}

absl::Status GroupWorker::AwaitReady(const Job& job, Group* group) {
  for (const auto& communicator : group->seats) {
    for (;;) {
      SYNCOPATE_ASSIGN_OR_RETURN(bool ready, communicator->Poll());
      if (ready) break;
      SYNCOPATE_RETURN_IF_ERROR(Pause(job));
    }
  }
  return absl::OkStatus();
}

absl::Status GroupWorker::AwaitMark(const Job& job, Group* group) {
  for (;;) {
    SYNCOPATE_ASSIGN_OR_RETURN(bool reached, device_->Reached());
    if (reached) return absl::OkStatus();
    SYNCOPATE_RETURN_IF_ERROR(AwaitReady(job, group));  // returns errors of failed peers
    absl::Status paused = Pause(job);
    if (paused.ok()) continue;
    // If all messages have ended when the job is cancelled, the job has not failed, and its communicators are kept.
    SYNCOPATE_ASSIGN_OR_RETURN(reached, device_->Reached());
    return reached ? absl::OkStatus() : paused;
  }
}

absl::Status GroupWorker::Pause(const Job& job) {
  if (options_.clock->Now() >= job.deadline) {
    return Error(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                 "the group did not exchange the weights in time");
  }
  MutexLock lock(&mutex_);
  auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !cancelled_.ok(); };
  mutex_.AwaitWithTimeout(Condition(&ended), options_.poll_interval);
  return cancelled_;
}

// Adds to `status` an error that makes this worker unusable.
void GroupWorker::Abort(const std::string& name, absl::Status* status) {
  auto failed = std::ranges::find(groups_, name, &Group::name);
  if (failed == groups_.end()) return;
  for (const auto& communicator : failed->seats) {
    absl::Status aborted = communicator->Abort();
    if (!aborted.ok()) stuck_ = aborted;
  }
  groups_.erase(failed);
  // Messages may still write to the destination: it may not be used before they have ended.
  absl::Status drained = device_->Drain(options_.drain_deadline);
  if (!drained.ok()) stuck_ = drained;
  if (stuck_.ok()) return;
  SYNCOPATE_LOG(kError, "nccl: %s; after: %s", std::string(stuck_.message()), std::string(status->message()));
  *status = stuck_;
}

void GroupWorker::EndOldGroups(size_t kept) {
  while (groups_.size() > kept) {
    for (const auto& communicator : groups_.back().seats) {
      absl::Status ended = communicator->Finalize(options_.finalize_deadline);
      if (!ended.ok()) SYNCOPATE_LOG(kInfo, "nccl: %s", std::string(ended.message()));
    }
    groups_.pop_back();
  }
  Publish();
}

void GroupWorker::Publish(const std::string& without) {
  // Groups that will be ended after this job are not offered for the next one.
  std::vector<std::string> names;
  for (const Group& group : groups_) {
    if (names.size() < options_.kept_groups) names.push_back(group.name);
  }
  std::erase(names, without);
  MutexLock lock(&mutex_);
  names_ = std::move(names);
}

}  // namespace syncopate::synchronizer::nccl
