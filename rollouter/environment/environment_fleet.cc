#include "rollouter/environment/environment_fleet.h"

#include <utility>

namespace syncopate::rollouter {

EnvironmentFleet::EnvironmentFleet(std::vector<RemoteEnvironment*> workers)
    : workers_(std::move(workers)), open_(workers_.size()) {}

absl::Status EnvironmentFleet::Availability(const std::string& environment) const {
  absl::Status first, not_found;
  for (const RemoteEnvironment* worker : workers_) {
    const absl::Status there = worker->Availability(environment);
    if (there.ok()) return there;
    if (absl::IsNotFound(there)) {
      not_found = there;
    } else {
      first.Update(there);
    }
  }
  // One worker that is away may have what the others do not have only if their code differs, which is refused.
  return not_found.ok() ? first : not_found;
}

size_t EnvironmentFleet::ChooseLocked(const std::string& environment) const {
  size_t best = workers_.size(), fewest = 0;
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (open_[i] < open_[fewest]) fewest = i;
    if (!workers_[i]->Availability(environment).ok()) continue;
    if (best == workers_.size() || open_[i] < open_[best]) best = i;
  }
  return best < workers_.size() ? best : fewest;
}

void EnvironmentFleet::Open(RemoteEpisode episode, Done done) {
  MutexLock lock(&mutex_);
  const size_t place = ChooseLocked(episode.environment);
  places_[episode.id] = place;
  ++open_[place];
  workers_[place]->Open(std::move(episode), std::move(done));
}

void EnvironmentFleet::Act(const std::string& episode, RemoteAction action, Done done) {
  MutexLock lock(&mutex_);
  const auto place = places_.find(episode);
  // An episode that was closed fails at any worker, which knows no such one.
  workers_[place == places_.end() ? 0 : place->second]->Act(episode, std::move(action), std::move(done));
}

void EnvironmentFleet::Close(const std::string& episode, const std::string& reason) {
  MutexLock lock(&mutex_);
  const auto place = places_.find(episode);
  if (place == places_.end()) return;
  workers_[place->second]->Close(episode, reason);
  --open_[place->second];
  places_.erase(place);
}

RemoteEnvironment::Counters EnvironmentFleet::counters() const {
  Counters sum;
  for (const RemoteEnvironment* worker : workers_) sum += worker->counters();
  return sum;
}

void EnvironmentFleet::SetAvailabilityListener(std::function<void()> changed) {
  for (RemoteEnvironment* worker : workers_) worker->SetAvailabilityListener(changed);
}

}  // namespace syncopate::rollouter
