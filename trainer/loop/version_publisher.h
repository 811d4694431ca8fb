#pragma once

#include <functional>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "trainer/loop/run_observer.h"

namespace syncopate::trainer {

// Tells the synchronizer which versions are staged, from a thread of its own, so that the step thread never waits for
// the network. Only the newest version matters: while the synchronizer is away a newer publication replaces the one
// that waits. Thread-safe.
class VersionPublisher {
 public:
  struct Options {
    // Tells it: OK once it is recorded. Blocks, for a bounded time.
    std::function<absl::Status(const Publication&)> tell;
    // Called at most once, from the publisher's thread, when a version has been refused for good (IsRefusal, such as
    // reason FENCED: a newer trainer has taken over). Nothing more is published: this trainer must exit.
    std::function<void(const absl::Status&)> on_refused;
  };

  explicit VersionPublisher(Options options);
  ~VersionPublisher();  // Stop()

  // Queues it; does not block. Repeated with backoff until it is recorded, overtaken or refused for good.
  void Publish(Publication publication);

  // Ends the thread within one call of `tell`. Idempotent.
  void Stop();

 private:
  void Run();

  const Options options_;
  Mutex mutex_;
  std::optional<Publication> pending_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace syncopate::trainer
