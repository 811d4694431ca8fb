#include "trainer/turns/card_turns.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace syncopate::trainer {

using Kind = CardTurns::Action::Kind;

absl::Status CardTurns::Options::Validate() const {
  const absl::Duration least = std::min({still_limit, absent_limit, room_limit});
  if (least > absl::ZeroDuration() && arrive_limit >= absent_limit) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
               "CardTurns: the limits must be positive, and arrive_limit at least absent_limit");
}

void CardTurns::Arrive(const std::string& rollouter, const std::string& incarnation, absl::Time now) {
  SYNCOPATE_CHECK(!IsTrainersTurn());
  if (!CountsArrivals()) return;
  evicted_.erase(rollouter);  // another process has taken its place
  if (IsConnected(rollouter, incarnation)) return;
  // Absent until it connects: Tick() gives it up when `arrive_limit` has passed.
  rollouters_[rollouter] = {.incarnation = incarnation,
                            .connected = false,
                            .moved = now,
                            .absent_since = now + options_.arrive_limit - options_.absent_limit};
}

void CardTurns::LoseArrival(const std::string& rollouter, const std::string& incarnation, absl::Time now) {
  const auto found = rollouters_.find(rollouter);
  const bool waits = found != rollouters_.end() && found->second.incarnation == incarnation && !found->second.connected;
  // A stream that has broken since counts from then.
  if (waits) found->second.absent_since = std::min(found->second.absent_since, now);
}

CardTurns::Actions CardTurns::Connect(const std::string& rollouter, const std::string& incarnation, bool yielded,
                                      absl::Time now) {
  Actions actions;
  evicted_.erase(rollouter);  // it goes on after all, or another process has taken its place
  const auto found = rollouters_.find(rollouter);
  const bool same = found != rollouters_.end() && found->second.incarnation == incarnation;
  const bool was_away = same && found->second.away;
  Rollouter& one = rollouters_[rollouter];
  one = {.incarnation = incarnation, .on_card = !yielded, .away = was_away, .moved = now};
  if (TellsNewcomers()) {
    if (IsTrainersTurn()) {
      TellYield(rollouter, one, now, &actions);
    } else {
      TellBack(rollouter, one, now, &actions);
    }
  }
  Proceed(now, &actions);
  return actions;
}

CardTurns::Actions CardTurns::Disconnect(const std::string& rollouter, absl::Time now) {
  Actions actions;
  const auto found = rollouters_.find(rollouter);
  // The end of an older stream does not concern a successor that arrives.
  if (found == rollouters_.end() || !found->second.connected) return actions;
  found->second.connected = false;
  found->second.absent_since = now;
  Proceed(now, &actions);
  return actions;
}

CardTurns::Actions CardTurns::Died(const std::string& rollouter, absl::Time now) {
  Actions actions;
  if (const auto found = rollouters_.find(rollouter); found != rollouters_.end() && found->second.on_card) {
    left_.insert(rollouter);
  }
  rollouters_.erase(rollouter);
  evicted_.erase(rollouter);
  Proceed(now, &actions);
  return actions;
}

CardTurns::Actions CardTurns::Yielded(const std::string& rollouter, int64_t turn, absl::Time now) {
  Actions actions;
  const auto found = rollouters_.find(rollouter);
  // After a turn that was given back it may be on its way to the card again.
  if (found == rollouters_.end() || turn != turn_ || !IsTrainersTurn()) return actions;
  found->second.on_card = false;
  Proceed(now, &actions);
  return actions;
}

CardTurns::Actions CardTurns::Back(const std::string& rollouter, int64_t turn, absl::Time now) {
  Actions actions;
  const auto found = rollouters_.find(rollouter);
  if (found == rollouters_.end() || turn != turn_ || IsTrainersTurn()) return actions;
  found->second.away = false;
  Proceed(now, &actions);
  return actions;
}

void CardTurns::Moved(const std::string& rollouter, int64_t bytes, absl::Time now) {
  const auto found = rollouters_.find(rollouter);
  if (found == rollouters_.end() || !CountsBytes() || bytes <= found->second.bytes) return;
  found->second.bytes = bytes;
  found->second.moved = now;
}

CardTurns::Actions CardTurns::Ask(absl::Time now) {
  SYNCOPATE_CHECK(!IsTrainersTurn() && !asked_);
  Actions actions;
  asked_ = true;
  Proceed(now, &actions);
  return actions;
}

CardTurns::Actions CardTurns::GiveBack(absl::Time now) {
  SYNCOPATE_CHECK(IsTrainersTurn() || asked_);
  Actions actions;
  if (!std::exchange(asked_, false)) {
    phase_ = Phase::kReceiving;
    for (auto& [name, rollouter] : rollouters_) {
      if (rollouter.connected) TellBack(name, rollouter, now, &actions);
    }
  }
  Proceed(now, &actions);
  return actions;
}

CardTurns::Actions CardTurns::Room(bool has_room, absl::Time now) {
  Actions actions;
  const bool only_room = phase_ == Phase::kYielding && room_wanted_ != absl::InfiniteFuture() && !IsAnyOnCard();
  if (!only_room) return actions;
  if (has_room) {
    Begin(&actions);
  } else if (now - room_wanted_ >= options_.room_limit) {
    Action stuck{.kind = Kind::kStuck, .turn = turn_};
    stuck.holders.assign(left_.begin(), left_.end());
    for (const auto& [name, incarnation] : evicted_) stuck.holders.push_back(name);
    actions.push_back(std::move(stuck));
  }
  return actions;
}

CardTurns::Actions CardTurns::Tick(absl::Time now) {
  Actions actions;
  for (auto one = rollouters_.begin(); one != rollouters_.end();) {
    Rollouter& rollouter = one->second;
    const bool gone = !rollouter.connected && now - rollouter.absent_since >= options_.absent_limit;
    if (gone && !rollouter.on_card) {
      one = rollouters_.erase(one);
    } else if (gone || (rollouter.connected && IsAwaited(rollouter) && IsStill(rollouter, now))) {
      actions.push_back({.kind = Kind::kEvict, .rollouter = one->first, .turn = turn_});
      evicted_[one->first] = rollouter.incarnation;
      one = rollouters_.erase(one);
    } else {
      ++one;
    }
  }
  Proceed(now, &actions);
  return actions;
}

bool CardTurns::IsAwaited(const Rollouter& rollouter) const {
  return phase_ == Phase::kYielding ? Holds(rollouter) : phase_ == Phase::kReceiving && rollouter.away;
}

bool CardTurns::IsAway(const std::string& rollouter) const {
  const auto found = rollouters_.find(rollouter);
  return found != rollouters_.end() && found->second.away;
}

bool CardTurns::IsConnected(const std::string& rollouter, const std::string& incarnation) const {
  const auto found = rollouters_.find(rollouter);
  return found != rollouters_.end() && found->second.incarnation == incarnation && found->second.connected;
}

std::vector<std::string> CardTurns::Holders() const {
  std::vector<std::string> holders;
  for (const auto& [name, rollouter] : rollouters_) {
    if (rollouter.on_card) holders.push_back(name);
  }
  for (const auto& [name, incarnation] : evicted_) holders.push_back(name);
  return holders;
}

void CardTurns::TellYield(const std::string& name, Rollouter& rollouter, absl::Time now, Actions* actions) {
  rollouter.away = true;
  rollouter.moved = now;
  actions->push_back({.kind = Kind::kTellYield, .rollouter = name, .turn = turn_});
}

void CardTurns::TellBack(const std::string& name, Rollouter& rollouter, absl::Time now, Actions* actions) {
  rollouter.on_card = true;  // from here on it takes memory
  rollouter.moved = now;
  actions->push_back({.kind = Kind::kTellBack, .rollouter = name, .turn = turn_});
}

void CardTurns::BeginYielding(absl::Time now, Actions* actions) {
  asked_ = false;
  phase_ = Phase::kYielding;
  room_wanted_ = absl::InfiniteFuture();
  ++turn_;
  for (auto& [name, rollouter] : rollouters_) {
    if (rollouter.connected) TellYield(name, rollouter, now, actions);
  }
}

bool CardTurns::IsAnyOnCard() const {
  return std::any_of(rollouters_.begin(), rollouters_.end(), [this](const auto& one) { return Holds(one.second); });
}

// One that is not connected cannot say that it is back, and nothing waits for it to be.
bool CardTurns::IsAnyAwaited() const {
  return std::any_of(rollouters_.begin(), rollouters_.end(),
                     [this](const auto& one) { return one.second.connected && IsAwaited(one.second); });
}

void CardTurns::Proceed(absl::Time now, Actions* actions) {
  if (phase_ == Phase::kReceiving && !IsAnyAwaited()) {
    phase_ = Phase::kRollouters;
    actions->push_back({.kind = Kind::kFinish, .turn = turn_});
  }
  if (phase_ == Phase::kRollouters && asked_) BeginYielding(now, actions);
  if (phase_ != Phase::kYielding || IsAnyOnCard()) return;
  if (NeedsRoom()) {
    room_wanted_ = std::min(room_wanted_, now);
    actions->push_back({.kind = Kind::kLookForRoom, .turn = turn_});
    return;
  }
  Begin(actions);
}

void CardTurns::Begin(Actions* actions) {
  phase_ = Phase::kTrainer;
  left_.clear();
  actions->push_back({.kind = Kind::kBegin, .turn = turn_});
}

}  // namespace syncopate::trainer
