#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "rollouter/environment/remote_environment.h"

namespace syncopate::rollouter {

// Several workers with the same environments, as one. A new episode goes to the worker that has the fewest of those that can
// play it now, and stays there. Thread-safe; no method blocks.
class EnvironmentFleet final : public RemoteEnvironment {
 public:
  // `workers` must not be empty, and must outlive the fleet.
  explicit EnvironmentFleet(std::vector<RemoteEnvironment*> workers);

  // OK while one worker can play it; else NOT_FOUND if all that are there do not have it, else the first worker's error.
  absl::Status Availability(const std::string& environment) const override;
  // While no worker can play it, the episode waits for the one with the fewest.
  void Open(RemoteEpisode episode, Done done) override;
  void Act(const std::string& episode, RemoteAction action, Done done) override;
  void Close(const std::string& episode, const std::string& reason) override;
  Counters counters() const override;  // of all workers
  void SetAvailabilityListener(std::function<void()> changed) override;

 private:
  size_t ChooseLocked(const std::string& environment) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<RemoteEnvironment*> workers_;
  mutable Mutex mutex_;
  std::map<std::string, size_t> places_ ABSL_GUARDED_BY(mutex_);  // by episode: its worker, until it is closed
  std::vector<int64_t> open_ ABSL_GUARDED_BY(mutex_);             // episodes of each worker
};

}  // namespace syncopate::rollouter
