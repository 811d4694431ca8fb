#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/policy_version.h"
#include "base/status.h"
#include "base/worker.h"
#include "trainer/staging/weight_stager.h"

namespace syncopate::trainer {

// Staging on a rank that follows rank 0: launched when rank 0 says so, and awaited by a thread of its own, while the
// rank carries out rank 0's next commands. Its methods are for the thread that owns the policy.
class FollowerStager {
 public:
  // Reports to rank 0 what became of a staging, once for each. Called by that thread, or within Stage() if nothing
  // could be launched.
  using Tell = std::function<void(const PolicyVersion& version, const absl::StatusOr<WeightStager::Staged>& staged)>;
  // See StepLoop::Parts::hold_device; null: nobody measures.
  using HoldDevice = std::function<std::shared_ptr<const void>()>;

  // `stager` is borrowed and of this rank's shard.
  FollowerStager(WeightStager* stager, Tell tell) : stager_(stager), tell_(std::move(tell)) {}
  ~FollowerStager() { Stay(); }

  // Called as WeightStager::Launch is. Rank 0 orders the next one when it has heard of this one.
  void Stage(const PolicyVersion& version) {
    Stay();
    const absl::Status launched = stager_->Launch(version);
    if (!launched.ok()) return tell_(version, launched);
    const bool posted = thread_.Post([this, version] { tell_(version, stager_->Await()); });
    SYNCOPATE_CHECK(posted);
  }

  // From now on what is staged leaves the device as soon as nobody reads it there, also what a receiver has brought
  // back. Returns at once; needs that rank 0 has heard of every staging.
  void Leave(HoldDevice hold) {
    {
      MutexLock lock(&mutex_);
      if (std::exchange(leaves_, true)) return;
      is_leaving_ = true;
    }
    const bool posted = thread_.Post([this, hold = std::move(hold)] { KeepLeaving(hold); });
    SYNCOPATE_CHECK(posted);
  }
  // Ends that; nothing leaves any more when this returns.
  void Stay() {
    MutexLock lock(&mutex_);
    leaves_ = false;
    auto has_ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !is_leaving_; };
    mutex_.Await(Condition(&has_ended));  // bounded: one copy to host memory at most
  }

 private:
  void KeepLeaving(const HoldDevice& hold) {
    constexpr absl::Duration kLook = absl::Milliseconds(50);
    bool fails = false;
    for (;;) {
      const std::shared_ptr<const void> held = hold != nullptr ? hold() : nullptr;
      const absl::StatusOr<bool> left =
          hold != nullptr && held == nullptr ? absl::StatusOr<bool>(false) : stager_->LeaveDevice();
      if (!left.ok() && !std::exchange(fails, true)) {
        SYNCOPATE_LOG(kWarning, "the staged weights stay on the device: %s", left.status().ToString());
      }
      MutexLock lock(&mutex_);
      auto is_over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !leaves_; };
      if (!mutex_.AwaitWithTimeout(Condition(&is_over), kLook)) continue;
      is_leaving_ = false;
      return;
    }
  }

  WeightStager* const stager_;
  const Tell tell_;
  Mutex mutex_;
  bool leaves_ ABSL_GUARDED_BY(mutex_) = false;      // staged weights are to leave
  bool is_leaving_ ABSL_GUARDED_BY(mutex_) = false;  // KeepLeaving runs, or will
  Worker thread_;                                    // last: it uses all of the above
};

}  // namespace syncopate::trainer
