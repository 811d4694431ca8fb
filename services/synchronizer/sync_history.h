#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <utility>

#include "synchronizer/sync_outcome.h"
#include "syncopate/v1/synchronizer.pb.h"

namespace syncopate::synchronizerd {

// The last sync records and the watchers for new ones. Not thread-safe: the control loop's thread owns it.
class SyncHistory {
 public:
  static constexpr size_t kKept = 1000;

  struct Watcher {
    std::function<bool(const v1::SyncRecord&)> write;  // must not block; false: the watcher wants no more
    std::function<void()> end;                         // called when there will be no more records
  };

  void Add(v1::SyncRecord record) {
    for (auto watcher = watchers_.begin(); watcher != watchers_.end();) {
      watcher = watcher->second.write(record) ? std::next(watcher) : watchers_.erase(watcher);
    }
    ++outcomes_[synchronizer::ClassifySyncResult(record.result())];
    records_.push_back(std::move(record));
    if (records_.size() > kKept) records_.pop_front();
  }

  // The newest `last` records, oldest first.
  void Replay(int64_t last, const Watcher& watcher) const {
    int64_t kept = static_cast<int64_t>(records_.size());
    for (int64_t i = std::max<int64_t>(0, kept - last); i < kept; ++i) {
      if (!watcher.write(records_[i])) return;
    }
  }
  void Follow(int64_t id, Watcher watcher) { watchers_[id] = std::move(watcher); }
  void Forget(int64_t id) { watchers_.erase(id); }
  void EndAll() {
    for (const auto& [id, watcher] : watchers_) watcher.end();
    watchers_.clear();
  }

  int64_t ok() const { return Count(synchronizer::SyncOutcome::kDone) + Count(synchronizer::SyncOutcome::kRelabelled); }
  int64_t superseded() const { return Count(synchronizer::SyncOutcome::kSuperseded); }
  int64_t failed() const { return Count(synchronizer::SyncOutcome::kFailed); }

 private:
  int64_t Count(synchronizer::SyncOutcome outcome) const {
    auto found = outcomes_.find(outcome);
    return found == outcomes_.end() ? 0 : found->second;
  }

  std::deque<v1::SyncRecord> records_;
  std::map<int64_t, Watcher> watchers_;
  std::map<synchronizer::SyncOutcome, int64_t> outcomes_;
};

}  // namespace syncopate::synchronizerd
