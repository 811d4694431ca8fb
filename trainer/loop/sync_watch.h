#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "trainer/loop/sync_patience.h"

namespace syncopate::trainer {

// Watches whether the weight syncs of a run succeed, on a thread of its own, by polling the synchronizer's counts. A
// synchronizer that does not answer is no failed sync: MemberClient notices its absence. Thread-safe.
class SyncWatch {
 public:
  struct Options {
    // Both ask the synchronizer; they block, for a bounded time. `why_failed`: why the last attempt that failed did.
    std::function<absl::StatusOr<SyncPatience::Tally>()> count;
    std::function<std::string()> why_failed;
    absl::Duration give_up_after = absl::Minutes(10);
    absl::Duration poll = absl::Seconds(1);  // or a tenth of the time above
    // Called at most once, from the watch's thread: reason SYNC_FAILING (sync_patience.h), with why the last attempt
    // failed. Nothing is looked at after it.
    std::function<void(const absl::Status&)> on_failing;
  };

  explicit SyncWatch(Options options);
  ~SyncWatch();  // Stop()

  // True while the last attempts have failed and syncs are still tried again.
  bool failing() const { return failing_; }

  // Ends the thread within one call of those that ask. Idempotent.
  void Stop();

 private:
  void Run();
  // Returns true as soon as the end is requested, false after a poll's time.
  bool AwaitStop();

  const Options options_;
  std::atomic<bool> failing_ = false;
  Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace syncopate::trainer
