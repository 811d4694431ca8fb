#pragma once

#include <functional>
#include <optional>

#include "base/mutex.h"
#include "base/worker.h"
#include "synchronizer/messages.h"

namespace syncopate::member {

// Passes the latest directory on to one listener, on the thread of a Worker, in order. Never more than one call is
// queued: while the listener is busy, directories that are overtaken are skipped. Thread-safe; does not block.
class DirectoryFeed {
 public:
  using Listener = std::function<void(const synchronizer::Directory&)>;

  // `thread` is borrowed; no call comes after its Stop. The feed must live until then.
  explicit DirectoryFeed(Worker* thread) : thread_(thread) {}

  // Replaces the listener, which is told the latest directory as soon as there is one, and each change from then on.
  void SetListener(Listener listener);
  void Update(const synchronizer::Directory& directory);

 private:
  void QueueLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Deliver();

  Worker* const thread_;
  Mutex mutex_;
  Listener listener_ ABSL_GUARDED_BY(mutex_);
  std::optional<synchronizer::Directory> latest_ ABSL_GUARDED_BY(mutex_);
  std::optional<synchronizer::Directory> delivered_ ABSL_GUARDED_BY(mutex_);  // to this listener
  bool queued_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncopate::member
