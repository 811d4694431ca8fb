#include "trainer/turns/turn_desk.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"

namespace syncopate::trainer {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(500);

}  // namespace

using Kind = CardTurns::Action::Kind;

void TurnDesk::Connect(const std::string& rollouter, const std::string& incarnation, int64_t stream, bool yielded,
                       Tell tell) {
  MutexLock lock(&mutex_);
  streams_[rollouter] = {stream, std::move(tell)};
  Perform(turns_.Connect(rollouter, incarnation, yielded, parts_.clock->Now()));
  // A new stream begins without leases, so that their clocks begin anew.
  away_.erase(rollouter);
  UpdateAway(rollouter);
}

void TurnDesk::Record(const std::string& rollouter, int64_t stream, const Report& report) {
  MutexLock lock(&mutex_);
  const auto found = streams_.find(rollouter);
  if (found == streams_.end() || found->second.id != stream) return;
  const absl::Time now = parts_.clock->Now();
  turns_.Moved(rollouter, report.moved_bytes, now);
  if (report.state == Report::State::kYielded) Perform(turns_.Yielded(rollouter, report.turn, now));
  if (report.state == Report::State::kBack) Perform(turns_.Back(rollouter, report.turn, now));
  UpdateAway(rollouter);
}

void TurnDesk::Disconnect(const std::string& rollouter, int64_t stream, bool in_order) {
  MutexLock lock(&mutex_);
  const auto found = streams_.find(rollouter);
  if (found == streams_.end() || found->second.id != stream) return;
  streams_.erase(found);
  away_.erase(rollouter);
  const absl::Time now = parts_.clock->Now();
  Perform(in_order ? turns_.Died(rollouter, now) : turns_.Disconnect(rollouter, now));
}

absl::Status TurnDesk::Take(const std::function<bool()>& is_unwanted) {
  {
    MutexLock lock(&mutex_);
    Perform(turns_.Ask(parts_.clock->Now()));
  }
  for (;;) {
    std::vector<int64_t> evicted;
    {
      MutexLock lock(&mutex_);
      auto decided = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return turns_.phase() == CardTurns::Phase::kTrainer || !stuck_.ok();
      };
      if (mutex_.AwaitWithTimeout(Condition(&decided), kTick)) return stuck_;
      TickLocked();
      evicted = std::exchange(to_evict_, {});
    }
    EvictThose(evicted);
    if (!is_unwanted()) continue;
    GiveBack();
    return Error(absl::StatusCode::kCancelled, kTurnUnwanted, "the turn was given back before it began");
  }
}

void TurnDesk::GiveBack() {
  std::map<int64_t, Waiting> waiting;
  {
    MutexLock lock(&mutex_);
    Perform(turns_.GiveBack(parts_.clock->Now()));
    waiting = std::exchange(waiting_, {});
    for (const auto& [number, one] : waiting) ArriveLocked(one.who);
  }
  for (const auto& [number, one] : waiting) one.call();
}

int64_t TurnDesk::CallInRolloutersTurn(const Newcomer& who, std::function<void()> call) {
  {
    MutexLock lock(&mutex_);
    if (turns_.IsTrainersTurn()) {
      waiting_[next_waiting_] = {who, std::move(call)};
      return next_waiting_++;
    }
    ArriveLocked(who);
  }
  call();
  return 0;
}

void TurnDesk::Forget(int64_t waiting) {
  Waiting forgotten;  // freed without the lock
  MutexLock lock(&mutex_);
  const auto found = waiting_.find(waiting);
  if (found == waiting_.end()) return;
  forgotten = std::move(found->second);
  waiting_.erase(found);
}

void TurnDesk::LoseArrival(const Newcomer& who) {
  MutexLock lock(&mutex_);
  turns_.LoseArrival(who.rollouter, who.incarnation, parts_.clock->Now());
}

void TurnDesk::ArriveLocked(const Newcomer& who) {
  if (who.rollouter.empty()) return;
  // One that has a stream asks once more: it is told on that stream when to leave, so that it must be kept.
  if (turns_.IsConnected(who.rollouter, who.incarnation)) return;
  // It has no stream yet, and the end of its predecessor's is not its own.
  streams_.erase(who.rollouter);
  away_.erase(who.rollouter);
  turns_.Arrive(who.rollouter, who.incarnation, parts_.clock->Now());
}

void TurnDesk::Look() {
  std::vector<int64_t> evicted;
  {
    MutexLock lock(&mutex_);
    if (parts_.clock->Now() - ticked_ < kTick) return;
    TickLocked();
    evicted = std::exchange(to_evict_, {});
  }
  EvictThose(evicted);
}

TurnDesk::Status TurnDesk::GetStatus() const {
  MutexLock lock(&mutex_);
  return {turns_.phase(), turns_.turn(), turns_.Holders()};
}

void TurnDesk::TickLocked() {
  ticked_ = parts_.clock->Now();
  Perform(turns_.Tick(ticked_));
}

// In the order of the actions: what a rollouter is told first reaches it first.
void TurnDesk::Perform(const CardTurns::Actions& actions) {
  for (const CardTurns::Action& action : actions) {
    switch (action.kind) {
      case Kind::kTellYield:
      case Kind::kTellBack:
        if (const auto found = streams_.find(action.rollouter); found != streams_.end()) {
          found->second.tell(action.kind == Kind::kTellYield, action.turn);
        }
        UpdateAway(action.rollouter);
        break;
      case Kind::kEvict:
        SYNCOPATE_LOG(kError, "%s moves nothing in turn %d on the trainer's card: it is evicted", action.rollouter,
                      action.turn);
        if (const auto found = streams_.find(action.rollouter); found != streams_.end()) {
          to_evict_.push_back(found->second.id);
        }
        break;
      case Kind::kLookForRoom:
        room_ = parts_.has_room == nullptr ? absl::OkStatus() : parts_.has_room();
        Perform(turns_.Room(room_.ok(), parts_.clock->Now()));
        break;
      case Kind::kBegin:
      case Kind::kFinish:
        break;
      case Kind::kStuck:
        stuck_ = Error(absl::StatusCode::kFailedPrecondition, "TURN_STUCK",
                       absl::StrCat("turn ", action.turn, " on the shared card cannot begin: ",
                                    action.holders.empty() ? "a process that is no rollouter of this run"
                                                           : absl::StrJoin(action.holders, ", "),
                                    " did not leave it, and it has no room for the trainer (",
                                    std::string(room_.message()), "); end that process"));
        break;
    }
  }
}

void TurnDesk::UpdateAway(const std::string& rollouter) {
  const bool away = turns_.IsAway(rollouter);
  const auto stream = streams_.find(rollouter);
  if (stream == streams_.end() || std::exchange(away_[rollouter], away) == away) return;
  if (parts_.set_away != nullptr) parts_.set_away(stream->second.id, away);
}

void TurnDesk::EvictThose(const std::vector<int64_t>& streams) {
  const absl::Status why =
      Error(absl::StatusCode::kAborted, "TURN_EVICTED", "this rollouter moved no byte of the shared card for too long");
  for (const int64_t stream : streams) {
    if (parts_.evict != nullptr) parts_.evict(stream, why);
  }
}

}  // namespace syncopate::trainer
