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
// and keeps the communicators of the latest groups for later transfers. Thread-safe.
//
// A transfer that fails, is cancelled or runs out of time aborts the communicators of its group, because their state is
// no longer reliable. If the abort fails too (ABORT_STUCK, COPY_STUCK), every later job gets the same error, and the
// process should end.
class GroupWorker {
 public:
  struct Options {
    size_t kept_groups = 2;
    absl::Duration poll_interval = absl::Microseconds(20);
    absl::Duration finalize_deadline = absl::Milliseconds(500);  // after it they are aborted
    absl::Duration drain_deadline = absl::Seconds(5);            // for the stream, after an abort
    const Clock* clock = Clock::Real();

    absl::Status Validate() const;  // INVALID_ARGUMENT reason BAD_OPTIONS
  };

  // One member's part in one transfer.
  struct Job {
    int64_t attempt = 0;
    std::string group;           // names the ordered set of members
    std::vector<UniqueId> ids;   // ids of new communicators, numbered by GroupShape; empty: use the kept ones
    GroupPlan plan;              // without rounds: only forms the group
    std::vector<Round> warm_up;  // run on new communicators
    char* base = nullptr;        // the send arena or the destination
    absl::Time deadline;
    std::function<void()> on_connected = [] {};
    Arrived on_arrived = nullptr;  // for received bytes
    // Called exactly once, by the worker's thread or by the thread that cancels: OK when all messages have been
    // exchanged. UNAVAILABLE reason GROUP_LOST if there are neither ids nor communicators; DEADLINE_EXCEEDED reason
    // DEADLINE; the status passed to Cancel; or an error of the communicators. From then on nothing reads or writes
    // `base`.
    std::function<void(absl::Status)> done;
  };

  using DeviceFactory = std::function<absl::StatusOr<std::unique_ptr<GroupDevice>>()>;

  // The worker's thread calls `device` before its first job; while that fails, jobs get its error.
  GroupWorker(DeviceFactory device, const Options& options);
  ~GroupWorker();  // cancels remaining jobs and ends the communicators, in bounded time

  // Does not block; jobs run in order.
  void Submit(Job job);
  // Makes the job of this attempt, if there is one, end soon with `why`.
  void Cancel(int64_t attempt, const absl::Status& why);
  // Whether the next job will find communicators of this group: they exist, or an unfinished job forms or uses them. If
  // that job fails, the next one gets GROUP_LOST.
  bool Has(const std::string& group) const;

 private:
  struct Group {
    std::string name;
    std::vector<std::unique_ptr<Communicator>> seats;  // in the order of GroupPlan::seats
  };

  void Run(const std::stop_token& stop);
  absl::Status Execute(const Job& job);
  absl::StatusOr<Group*> Connect(const Job& job);
  absl::Status FormGroup(const Job& job, Group* group);
  absl::Status Exchange(const Job& job, const std::vector<Round>& rounds, Group* group, bool warm_up);
  absl::Status AwaitReady(const Job& job, Group* group);
  absl::Status AwaitMark(const Job& job, Group* group);
  // Sleeps for one interval; an error if the job was cancelled or its deadline has passed.
  absl::Status Pause(const Job& job);
  void Abort(const std::string& name, absl::Status* status);
  void EndOldGroups(size_t kept);
  void Publish(const std::string& without = "");  // updates names_ for Has

  const DeviceFactory make_device_;
  const Options options_;

  // Used by the worker's thread only.
  std::unique_ptr<GroupDevice> device_;
  std::list<Group> groups_;  // most recently used first
  absl::Status stuck_;

  mutable Mutex mutex_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  std::optional<int64_t> current_ ABSL_GUARDED_BY(mutex_);  // attempt of the running job
  std::string current_group_ ABSL_GUARDED_BY(mutex_);       // group of the running job
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);          // not OK: why the running job must end
  std::vector<std::string> names_ ABSL_GUARDED_BY(mutex_);  // of groups_
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::jthread thread_;  // last: ends before the members that it uses
};

}  // namespace syncopate::synchronizer::nccl
