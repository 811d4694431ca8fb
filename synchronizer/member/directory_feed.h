#pragma once

#include <functional>
#include <optional>

#include "base/mutex.h"
#include "base/worker.h"
#include "synchronizer/messages.h"

namespace syncopate::member {

// Passes the latest directory to one listener, on the thread of a Worker, in order. At most one call is queued: while
// the listener is busy, overtaken directories are skipped. Thread-safe; does not block.
class DirectoryFeed {
 public:
  using Listener = std::function<void(const synchronizer::Directory&)>;

  // `thread` is borrowed; no call comes after its Stop. The feed must exist until then.
  explicit DirectoryFeed(Worker* thread) : thread_(thread) {}

  // Replaces the listener. It gets the latest directory as soon as there is one, and then each change.
  void SetListener(Listener listener);
  void Update(const synchronizer::Directory& directory);

 private:
  void QueueLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Deliver();

  Worker* const thread_;
  Mutex mutex_;
  Listener listener_ ABSL_GUARDED_BY(mutex_);
  std::optional<synchronizer::Directory> latest_ ABSL_GUARDED_BY(mutex_);
  std::optional<synchronizer::Directory> delivered_ ABSL_GUARDED_BY(mutex_);  // the last one delivered to this listener
  bool queued_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncopate::member
