#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "base/trajectory.h"

namespace syncopate::rollouter {

// The reason of the error with which a scorer's service refuses this client: an operator must mend it. The scorer is away
// until then, and what it was asked has not failed.
inline constexpr char kScorerRefused[] = "SCORER_REFUSED";

// Answers to one prompt that a scorer outside this process judges.
struct RemoteItem {
  std::string id;        // unique: an id is never reused
  std::string reward;    // Python: the name of the function; http and judge: ""
  std::string row_json;  // the row of the lease's task; "" if there is none
  std::vector<std::string> texts;
  std::vector<FinishReason> finishes;  // one entry per text
  absl::Duration budget;               // the time limit, counted from the call of Score
  // Python: one entry per text, which the scorer passes on if the function reads them; else empty.
  std::vector<std::vector<int32_t>> tokens = {};
  std::vector<std::vector<float>> logprobs = {};
};

// The reward of one answer from a remote scorer, with the components that it reports for display.
struct RemoteReward {
  float value = 0;
  std::vector<std::pair<std::string, float>> components = {};
  std::string extracted = {};  // the answer that it found in the text; empty: none
};

// The interface to rewards outside this process. Thread-safe; no method blocks.
class RemoteScorer {
 public:
  // One entry per answer, in order. `Done` receives these, or one error that applies to all answers.
  using Rewards = std::vector<absl::StatusOr<RemoteReward>>;
  using Done = std::function<void(absl::StatusOr<Rewards>)>;

  virtual ~RemoteScorer() = default;
  // OK while the scorer can be called for `reward`. RESOURCE_EXHAUSTED: the scorer is busy, call later. Any other error
  // means that the scorer is away: UNAVAILABLE, or an error that an operator must fix before it can be called.
  virtual absl::Status Availability(const std::string& reward) const = 0;
  // `done` is called once, on any thread but not from within this call. If the item is cancelled, `done` may never be
  // called. INVALID_ARGUMENT is permanent; with reason kScorerRefused the call was not judged at all; a call that ended
  // with any other error may be retried.
  virtual void Score(RemoteItem item, Done done) = 0;
  // Cancels the item `id`; an unknown id has no effect.
  virtual void Cancel(const std::string& id) = 0;
  // `changed` is called on any thread after the answer of Availability has changed; it must not call back into the
  // scorer. Set it once, before the first item.
  virtual void SetAvailabilityListener(std::function<void()> changed) = 0;
  // Tokens that a model has used for it since it began; 0 where no model judges.
  virtual int64_t used_tokens() const { return 0; }
};

}  // namespace syncopate::rollouter
