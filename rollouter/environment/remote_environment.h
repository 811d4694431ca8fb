#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/trajectory.h"
#include "rollouter/environment/environment.h"
#include "text/template/tool_calls.h"

namespace syncopate::rollouter {

// One play of a sample, at an environment outside this process.
struct RemoteEpisode {
  std::string id;  // unique: an id is never reused
  std::string environment;
  std::string row_json;  // the row of the lease's task; "" if there is none
  uint64_t seed = 0;
  int32_t max_turns = 1;
};

// What the policy wrote in one turn.
struct RemoteAction {
  int32_t turn = 0;       // from 1 on
  std::string text = {};  // all of it
  FinishReason finish = FinishReason::kStop;
  // If the row has tools: the calls that could be read, and the text outside of them.
  std::vector<text::chat::ToolCall> tool_calls = {};
  std::string content = {};
};

// The interface to environments outside this process. Thread-safe; no method blocks, and none calls back from within.
class RemoteEnvironment {
 public:
  // Receives what the environment says to one call, or an error: the episode is then over, and may be played anew with
  // another id. INVALID_ARGUMENT means that it would fail again.
  using Done = std::function<void(absl::StatusOr<EnvironmentMessage>)>;

  struct Counters {
    int64_t opened = 0;            // episodes that the environment was asked to open
    int64_t turns = 0;             // acts that were answered
    int64_t failed = 0;            // calls that ended with an error, also of lost episodes and beyond the budget
    int64_t cancels = 0;           // cancels that were sent
    int64_t cancels_answered = 0;  // cancelled episodes of which the environment said that they are closed
    int64_t cancels_lost = 0;  // cancelled episodes of which it did not say so in time, or before its connection ended

    Counters& operator+=(const Counters& more) {
      opened += more.opened;
      turns += more.turns;
      failed += more.failed;
      cancels += more.cancels;
      cancels_answered += more.cancels_answered;
      cancels_lost += more.cancels_lost;
      return *this;
    }
  };

  virtual ~RemoteEnvironment() = default;
  // OK while `environment` can be played. UNAVAILABLE: not now. NOT_FOUND (reason NO_SUCH_ENVIRONMENT): it is connected,
  // and has none of this name. Other errors are for an operator.
  virtual absl::Status Availability(const std::string& environment) const = 0;
  // Begins an episode, and waits for that as long as a call may take while the environment is away or has no room.
  // `done` is called once, with what the policy reads before its first turn.
  virtual void Open(RemoteEpisode episode, Done done) = 0;
  // The policy's turn. `done` is called once. Precondition: no other call of the episode is under way.
  virtual void Act(const std::string& episode, RemoteAction action, Done done) = 0;
  // Ends an episode, cancelling what its environment is doing. No `done` of the episode is called afterwards, except one
  // that is being called already. No effect on an episode that is over.
  virtual void Close(const std::string& episode, const std::string& reason) = 0;
  virtual Counters counters() const = 0;
  // `changed` is called on any thread after the answer of Availability has changed; it must not call back. Set it once,
  // before the first episode.
  virtual void SetAvailabilityListener(std::function<void()> changed) = 0;
};

}  // namespace syncopate::rollouter
