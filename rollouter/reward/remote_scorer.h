#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "base/trajectory.h"

namespace syncopate::rollouter {

// Answers of one prompt that somebody else judges.
struct RemoteItem {
  std::string id;        // never used twice
  std::string reward;    // Python: the name of the function; http: ""
  std::string row_json;  // of the lease's task; "" if there is none
  std::vector<std::string> texts;
  std::vector<FinishReason> finishes;  // of the same answers
  absl::Duration budget;               // from now on
};

// What somebody else judged one answer to be worth, and what that is made of, for people to see.
struct RemoteReward {
  float value = 0;
  std::vector<std::pair<std::string, float>> components = {};
};

// The seam to rewards outside this process. Thread-safe; nothing blocks.
class RemoteScorer {
 public:
  // One entry an answer, in order. Or an error of all of them.
  using Rewards = std::vector<absl::StatusOr<RemoteReward>>;
  using Done = std::function<void(absl::StatusOr<Rewards>)>;

  virtual ~RemoteScorer() = default;
  // OK while it can be asked for `reward`. RESOURCE_EXHAUSTED: it has its hands full, and is asked later. Else it is
  // away: UNAVAILABLE, or what people must mend before it can be asked.
  virtual absl::Status Availability(const std::string& reward) const = 0;
  // `done` is called once, on any thread but not from within this call, unless the item is cancelled: then it may be
  // left out. INVALID_ARGUMENT is for good, everything else may be tried again.
  virtual void Score(RemoteItem item, Done done) = 0;
  virtual void Cancel(const std::string& id) = 0;
  // `changed` is called after the answer of Availability has changed, on any thread; it must not call back. Set it
  // once, before the first item.
  virtual void SetAvailabilityListener(std::function<void()> changed) = 0;
};

}  // namespace syncopate::rollouter
