#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "synchronizer/nccl/communicator.h"
#include "synchronizer/nccl/group_plan.h"
#include "synchronizer/transport/transport.h"

namespace syncopate::synchronizer::nccl {

// The one thread of a process that makes, uses, finalises and aborts its communicators. It does one transfer at a time
// and keeps the communicators of the groups that it served last for the next one. Thread-safe.
//
// A transfer that fails, is cancelled or runs out of time aborts the communicators of its group: what its members have
// in common cannot be relied on any more. If that cannot be done either (ABORT_STUCK, COPY_STUCK) every later job gets
// the same error, and the process should end.
class GroupWorker {
 public:
  struct Options {
    size_t kept_groups = 2;
    absl::Duration poll_interval = absl::Microseconds(20);
    absl::Duration finalize_deadline = absl::Milliseconds(500);  // then they are aborted
    absl::Duration drain_deadline = absl::Seconds(5);            // for the stream, after an abort
    const Clock* clock = Clock::Real();

    absl::Status Validate() const;  // INVALID_ARGUMENT reason BAD_OPTIONS
  };

  // One member's part in one transfer.
  struct Job {
    int64_t attempt = 0;
    std::string group;           // names the set of members and their order
    std::vector<UniqueId> ids;   // of new communicators, as GroupShape numbers them; empty: those of last time
    GroupPlan plan;              // without rounds: the group is formed, nothing else
    std::vector<Round> warm_up;  // on communicators that are new
    char* base = nullptr;        // the send arena or the destination
    absl::Time deadline;
    std::function<void()> on_connected = [] {};
    Arrived on_arrived = nullptr;  // of what is received
    // Exactly once, by the worker's thread or that which cancels: OK when all messages have been exchanged. UNAVAILABLE
    // reason GROUP_LOST if there are neither ids nor communicators; DEADLINE_EXCEEDED reason DEADLINE; what Cancel
    // said; or what the communicators say. Nothing reads or writes `base` any more.
    std::function<void(absl::Status)> done;
  };

  using DeviceFactory = std::function<absl::StatusOr<std::unique_ptr<GroupDevice>>()>;

  // `device` is called by the worker's thread, before its first job; while it fails, jobs get its error.
  GroupWorker(DeviceFactory device, const Options& options);
  ~GroupWorker();  // cancels what is left and ends the communicators, in bounded time

  // Does not block; jobs are done in order.
  void Submit(Job job);
  // The job of this attempt, if there is one, ends soon with `why`.
  void Cancel(int64_t attempt, const absl::Status& why);
  // Whether the next job will find communicators of this group: they are there, or are what a job forms or uses that
  // has not ended. If that one fails, the next one gets GROUP_LOST.
  bool Has(const std::string& group) const;

 private:
  struct Group {
    std::string name;
    std::vector<std::unique_ptr<Communicator>> seats;  // as GroupPlan::seats
  };

  void Run(const std::stop_token& stop);
  absl::Status Execute(const Job& job);
  absl::StatusOr<Group*> Connect(const Job& job);
  absl::Status FormGroup(const Job& job, Group* group);
  absl::Status Exchange(const Job& job, const std::vector<Round>& rounds, Group* group, bool warm_up);
  absl::Status AwaitReady(const Job& job, Group* group);
  absl::Status AwaitMark(const Job& job, Group* group);
  // Sleeps for one interval; an error once the job was cancelled or its deadline has passed.
  absl::Status Pause(const Job& job);
  void Abort(const std::string& name, absl::Status* status);
  void EndOldGroups(size_t kept);
  void Publish(const std::string& without = "");  // tells Has

  const DeviceFactory make_device_;
  const Options options_;

  // The thread's alone.
  std::unique_ptr<GroupDevice> device_;
  std::list<Group> groups_;  // the last used first
  absl::Status stuck_;

  mutable Mutex mutex_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  std::optional<int64_t> current_ ABSL_GUARDED_BY(mutex_);  // attempt of the job being done
  std::string current_group_ ABSL_GUARDED_BY(mutex_);       // and its group
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);          // not OK: why that job must end
  std::vector<std::string> names_ ABSL_GUARDED_BY(mutex_);  // of groups_
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::jthread thread_;  // last: ends before what it uses
};

}  // namespace syncopate::synchronizer::nccl
