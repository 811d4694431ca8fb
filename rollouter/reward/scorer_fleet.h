#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "rollouter/reward/remote_scorer.h"

namespace syncopate::rollouter {

// Several workers with the same rewards, as one: an item goes to the next worker that can be called for its reward.
// Thread-safe; no method blocks.
class ScorerFleet final : public RemoteScorer {
 public:
  // `workers` must not be empty, and must outlive the fleet.
  explicit ScorerFleet(std::vector<RemoteScorer*> workers);
  ~ScorerFleet() override;

  // OK while one worker can be called; else RESOURCE_EXHAUSTED while one of them is only busy; else the first one's error.
  absl::Status Availability(const std::string& reward) const override;
  void Score(RemoteItem item, Done done) override;
  void Cancel(const std::string& id) override;
  void SetAvailabilityListener(std::function<void()> changed) override;

 private:
  struct Places;

  const std::vector<RemoteScorer*> workers_;
  const std::shared_ptr<Places> places_;  // shared with the callbacks of items under way
};

}  // namespace syncopate::rollouter
