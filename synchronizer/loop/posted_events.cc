#include "synchronizer/loop/posted_events.h"

#include <algorithm>
#include <utility>

namespace syncopate::synchronizer {

bool PostedEvents::Add(Posted posted) {
  if (blocked_) {
    if (posted.then != nullptr) return false;
    if (posted.kind == Kind::kEnd && ForgetUnheard(posted.session)) return true;
    // Appended, not put in the older one's place: its content is true now, after all earlier events.
    if (auto older = heartbeats_.find(posted.session); posted.kind == Kind::kHeartbeat && older != heartbeats_.end()) {
      events_.erase(older->second);
    }
  }
  events_.push_back(std::move(posted));
  if (blocked_ && events_.back().kind == Kind::kHeartbeat) {
    heartbeats_[events_.back().session] = std::prev(events_.end());
  }
  return true;
}

std::list<PostedEvents::Posted> PostedEvents::Take() {
  heartbeats_.clear();
  return std::exchange(events_, {});
}

std::vector<PostedEvents::Answer> PostedEvents::Block(std::list<Posted> rest) {
  rest.splice(rest.end(), events_);
  blocked_ = true;
  // The events are added again one by one, by the rules of a stopped loop.
  std::vector<Answer> calls;
  for (Posted& posted : rest) {
    if (posted.then != nullptr) {
      calls.push_back(std::move(posted.then));
    } else {
      Add(std::move(posted));
    }
  }
  return calls;
}

void PostedEvents::Unblock() {
  blocked_ = false;
  heartbeats_.clear();
}

bool PostedEvents::ForgetUnheard(SessionId session) {
  auto is_hello = [session](const Posted& one) { return one.session == session && one.kind == Kind::kHello; };
  if (std::none_of(events_.begin(), events_.end(), is_hello)) return false;
  events_.remove_if([session](const Posted& one) { return one.session == session; });
  heartbeats_.erase(session);
  return true;
}

}  // namespace syncopate::synchronizer
