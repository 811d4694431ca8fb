#include "rollouter/reward/scorer_fleet.h"

#include <memory>
#include <utility>

namespace syncopate::rollouter {

struct ScorerFleet::Places {
  Mutex mutex;
  std::map<std::string, size_t> by_item ABSL_GUARDED_BY(mutex);  // the worker of each item under way
  size_t next ABSL_GUARDED_BY(mutex) = 0;
};

ScorerFleet::ScorerFleet(std::vector<RemoteScorer*> workers)
    : workers_(std::move(workers)), places_(std::make_shared<Places>()) {}

ScorerFleet::~ScorerFleet() = default;

absl::Status ScorerFleet::Availability(const std::string& reward) const {
  absl::Status first, busy;
  for (const RemoteScorer* worker : workers_) {
    const absl::Status there = worker->Availability(reward);
    if (there.ok()) return there;
    if (absl::IsResourceExhausted(there)) {
      busy = there;
    } else {
      first.Update(there);
    }
  }
  return busy.ok() ? first : busy;
}

void ScorerFleet::Score(RemoteItem item, Done done) {
  size_t place = 0;
  {
    MutexLock lock(&places_->mutex);
    place = places_->next % workers_.size();
    for (size_t i = 0; i < workers_.size(); ++i) {
      const size_t candidate = (places_->next + i) % workers_.size();
      if (!workers_[candidate]->Availability(item.reward).ok()) continue;
      place = candidate;
      break;
    }
    places_->next = place + 1;
    places_->by_item[item.id] = place;
  }
  auto forget = [places = places_, id = item.id, done = std::move(done)](absl::StatusOr<Rewards> rewards) {
    {
      MutexLock lock(&places->mutex);
      places->by_item.erase(id);
    }
    done(std::move(rewards));
  };
  workers_[place]->Score(std::move(item), std::move(forget));
}

void ScorerFleet::Cancel(const std::string& id) {
  size_t place = 0;
  {
    MutexLock lock(&places_->mutex);
    const auto found = places_->by_item.find(id);
    if (found == places_->by_item.end()) return;
    place = found->second;
    places_->by_item.erase(found);
  }
  workers_[place]->Cancel(id);
}

void ScorerFleet::SetAvailabilityListener(std::function<void()> changed) {
  for (RemoteScorer* worker : workers_) worker->SetAvailabilityListener(changed);
}

}  // namespace syncopate::rollouter
