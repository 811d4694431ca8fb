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

// What was posted to the control loop and is not handled yet, in order. While the loop is held up by a full disk it
// handles nothing, and what waits is bounded by the streams that are open, however long that takes: calls are not
// taken, each stream's newest heartbeat replaces the one before, and a stream that ends before its hello was handled
// leaves nothing behind. Sans-IO; not thread-safe.
class PostedEvents {
 public:
  using Event = std::function<void(ControlPlane&, absl::Time)>;
  using Answer = std::function<void(const absl::Status&)>;
  enum class Kind : uint8_t {
    kHello,
    kHeartbeat,
    kMessage,  // any other of a stream
    kEnd,      // of a stream
    kOther,    // of no stream
  };
  struct Posted {
    Event event;
    Answer then = nullptr;  // of a call; null for whatever nobody waits for
    SessionId session = 0;  // the stream; 0 for kOther
    Kind kind = Kind::kOther;
  };

  bool empty() const { return events_.empty(); }
  bool held_up() const { return held_up_; }

  // Adds it at the end. False, and nothing is added: it is a call, and the loop is held up.
  bool Add(Posted posted);
  // All that waits, in order.
  std::list<Posted> Take();

  // The loop is held up; `rest` is what it has taken and not handled. The calls that wait: they are to be answered now,
  // and their events will not be handled.
  std::vector<Answer> HoldUp(std::list<Posted> rest);
  void GoOn();

 private:
  // True if it leaves nothing to do for the loop.
  bool ForgetUnheard(SessionId session);

  std::list<Posted> events_;
  bool held_up_ = false;
  std::map<SessionId, std::list<Posted>::iterator> heartbeats_;  // while held up
};

}  // namespace syncopate::synchronizer
