#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "rollouter/reward/remote_scorer.h"
#include "tests/support/notification.h"

namespace syncopate::testing {

// Keeps each item that it is asked to judge until the test answers.
class FakeRemoteScorer final : public rollouter::RemoteScorer {
 public:
  absl::Status Availability(const std::string&) const override {
    MutexLock lock(&mutex_);
    return there_;
  }
  void Score(rollouter::RemoteItem item, Done done) override {
    MutexLock lock(&mutex_);
    asked_.emplace_back(std::move(item), std::move(done));
  }
  void Cancel(const std::string& id) override {
    MutexLock lock(&mutex_);
    cancelled_.push_back(id);
  }
  void SetAvailabilityListener(std::function<void()> changed) override { changed_ = std::move(changed); }

  void SetThere(const absl::Status& there) {
    {
      MutexLock lock(&mutex_);
      there_ = there;
    }
    if (changed_) changed_();
  }
  std::optional<std::pair<rollouter::RemoteItem, Done>> AwaitAsked() {
    MutexLock lock(&mutex_);
    auto asked = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !asked_.empty(); };
    if (!mutex_.AwaitWithTimeout(Condition(&asked), kTestDeadline)) return std::nullopt;
    auto one = std::move(asked_.back());
    asked_.pop_back();
    return one;
  }
  bool AwaitCancelled(const std::string& id) {
    MutexLock lock(&mutex_);
    auto cancelled = [this, &id]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !cancelled_.empty() && cancelled_.back() == id;
    };
    return mutex_.AwaitWithTimeout(Condition(&cancelled), kTestDeadline);
  }

 private:
  mutable Mutex mutex_;
  absl::Status there_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<rollouter::RemoteItem, Done>> asked_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> cancelled_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> changed_;
};

}  // namespace syncopate::testing
