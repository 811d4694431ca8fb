#include "synchronizer/member/directory_feed.h"

#include <utility>

namespace syncopate::member {

void DirectoryFeed::SetListener(Listener listener) {
  MutexLock lock(&mutex_);
  listener_ = std::move(listener);
  delivered_.reset();
  QueueLocked();
}

void DirectoryFeed::Update(const synchronizer::Directory& directory) {
  MutexLock lock(&mutex_);
  latest_ = directory;
  QueueLocked();
}

void DirectoryFeed::QueueLocked() {
  if (queued_ || listener_ == nullptr || latest_ == delivered_) return;
  queued_ = thread_->Post([this] { Deliver(); });
}

void DirectoryFeed::Deliver() {
  Listener listener;
  synchronizer::Directory directory;
  {
    MutexLock lock(&mutex_);
    queued_ = false;
    if (listener_ == nullptr || latest_ == delivered_) return;  // the directory has changed back meanwhile
    delivered_ = latest_;
    directory = *latest_;
    listener = listener_;
  }
  listener(directory);
}

}  // namespace syncopate::member
