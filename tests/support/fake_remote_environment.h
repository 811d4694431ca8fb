#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "rollouter/environment/remote_environment.h"
#include "tests/support/notification.h"

namespace syncopate::testing {

// Keeps each call until the test answers it. Thread-safe.
class FakeRemoteEnvironment final : public rollouter::RemoteEnvironment {
 public:
  struct Call {
    std::string episode;
    int32_t turn = 0;  // 0: its Open
    uint64_t seed = 0;
    std::string text = {}, content = {};
    std::vector<text::chat::ToolCall> tool_calls = {};
    Done done = nullptr;
  };

  absl::Status Availability(const std::string&) const override {
    MutexLock lock(&mutex_);
    return there_;
  }
  void Open(rollouter::RemoteEpisode episode, Done done) override {
    MutexLock lock(&mutex_);
    calls_.push_back({.episode = episode.id, .seed = episode.seed, .done = std::move(done)});
  }
  void Act(const std::string& episode, rollouter::RemoteAction action, Done done) override {
    MutexLock lock(&mutex_);
    calls_.push_back({.episode = episode,
                      .turn = action.turn,
                      .text = action.text,
                      .content = action.content,
                      .tool_calls = action.tool_calls,
                      .done = std::move(done)});
  }
  void Close(const std::string& episode, const std::string&) override {
    MutexLock lock(&mutex_);
    closed_.push_back(episode);
    ++counters_.cancels;
  }
  Counters counters() const override {
    MutexLock lock(&mutex_);
    return counters_;
  }
  void SetAvailabilityListener(std::function<void()> changed) override { changed_ = std::move(changed); }

  void SetThere(const absl::Status& there) {
    {
      MutexLock lock(&mutex_);
      there_ = there;
    }
    if (changed_) changed_();
  }
  // Takes the oldest call.
  std::optional<Call> AwaitCall() {
    MutexLock lock(&mutex_);
    auto called = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !calls_.empty(); };
    if (!mutex_.AwaitWithTimeout(Condition(&called), kTestDeadline)) return std::nullopt;
    Call call = std::move(calls_.front());
    calls_.pop_front();
    return call;
  }
  bool AwaitClosed(size_t count) {
    MutexLock lock(&mutex_);
    auto closed = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_.size() >= count; };
    return mutex_.AwaitWithTimeout(Condition(&closed), kTestDeadline);
  }
  std::vector<std::string> closed() const {
    MutexLock lock(&mutex_);
    return closed_;
  }
  size_t calls() const {
    MutexLock lock(&mutex_);
    return calls_.size();
  }

 private:
  mutable Mutex mutex_;
  absl::Status there_ ABSL_GUARDED_BY(mutex_);
  std::deque<Call> calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> closed_ ABSL_GUARDED_BY(mutex_);
  Counters counters_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> changed_;
};

}  // namespace syncopate::testing
