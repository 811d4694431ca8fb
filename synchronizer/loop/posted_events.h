#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "synchronizer/messages.h"

namespace syncopate::synchronizer {

class ControlPlane;

// Events that were posted to the control loop and are not handled yet, in order. While a full disk stops the loop, no
// event is handled, and the number of waiting events is bounded by the number of open streams, for any duration: calls
// are rejected, a stream's newest heartbeat replaces the previous one, and a stream that ends before its hello was
// handled leaves no event. Sans-IO; not thread-safe.
class PostedEvents {
 public:
  using Event = std::function<void(ControlPlane&, absl::Time)>;
  using Answer = std::function<void(const absl::Status&)>;
  enum class Kind : uint8_t {
    kHello,
    kHeartbeat,
    kMessage,  // any other message of a stream
    kEnd,      // the end of a stream
    kOther,    // belongs to no stream
  };
  struct Posted {
    Event event;
    Answer then = nullptr;  // the answer to a call; null if there is no caller
    SessionId session = 0;  // the stream; 0 for kOther
    Kind kind = Kind::kOther;
  };

  bool empty() const { return events_.empty(); }
  bool blocked() const { return blocked_; }

  // Appends `posted`. False, and nothing is added, if it is a call and the loop is stopped.
  bool Add(Posted posted);
  // Removes and returns all waiting events, in order.
  std::list<Posted> Take();

  // Call when the loop stops; `rest`: the events that it has taken and not handled. Returns the answers of the waiting
  // calls: the caller must answer them now, because their events will not be handled.
  std::vector<Answer> Block(std::list<Posted> rest);
  void Unblock();

 private:
  // True if the stream's hello was not handled, so that the loop need not handle its end.
  bool ForgetUnheard(SessionId session);

  std::list<Posted> events_;
  bool blocked_ = false;
  std::map<SessionId, std::list<Posted>::iterator> heartbeats_;  // the newest per stream, while the loop is stopped
};

}  // namespace syncopate::synchronizer
