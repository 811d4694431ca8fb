#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/status.h"
#include "services/auth/transport_security.h"

namespace syncopate::trainerd {

// Looks at how the weight syncs of a run go, from a thread of its own, by asking the synchronizer what it counts. A
// synchronizer that does not answer says nothing about syncs: who misses it is the member client. Thread-safe.
class SyncWatch {
 public:
  struct Options {
    std::string synchronizer_address;
    std::shared_ptr<const auth::TransportSecurity> security = nullptr;  // null: plaintext
    absl::Duration give_up_after = absl::Minutes(10);
    absl::Duration poll = absl::Seconds(1);  // or a tenth of the time above
    absl::Duration call_timeout = absl::Seconds(2);
    // Called at most once, from the watch's thread: reason SYNC_FAILING (sync_patience.h), with why the last attempt
    // failed. Nothing is looked at after it.
    std::function<void(const absl::Status&)> on_failing;
  };

  // INVALID_ARGUMENT for an address that cannot be.
  static absl::StatusOr<std::unique_ptr<SyncWatch>> Start(Options options);
  ~SyncWatch();  // Stop()

  // The last attempts have failed, and it is tried again.
  bool failing() const { return failing_; }

  // Ends the thread within one call's timeout. Idempotent.
  void Stop();

 private:
  class Caller;
  SyncWatch(Options options, std::unique_ptr<Caller> caller);
  void Run();
  // True as soon as somebody wants the end; false after a poll's time.
  bool AwaitStop();

  const Options options_;
  const std::unique_ptr<Caller> caller_;
  std::atomic<bool> failing_ = false;
  Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace syncopate::trainerd
