#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "trainer/turns/card_turns.h"

namespace syncopate::trainer {

inline constexpr char kTurnUnwanted[] = "TURN_UNWANTED";

// The turns of a trainer and the rollouters on its cards: a thread-safe shell round CardTurns. The step thread takes the
// cards and gives them back; streams of rollouters connect and report.
class TurnDesk {
 public:
  // None may block or call this object; all but `evict` are called under its lock. Null: nobody is told.
  struct Parts {
    const Clock* clock = nullptr;
    // The clocks of a rollouter's leases stand still while it is away.
    std::function<void(int64_t stream, bool away)> set_away = nullptr;
    std::function<void(int64_t stream, const absl::Status& why)> evict = nullptr;  // ends the stream
    // OK if the trainer's device has room for its state; else says how many bytes are free, and how many it needs. Null:
    // there is always room.
    std::function<absl::Status()> has_room = nullptr;
  };
  // Tells a rollouter whose turn it is. Must not block or call this object.
  using Tell = std::function<void(bool yield, int64_t turn)>;
  struct Report {
    int64_t turn = 0;  // that it answers
    enum class State : uint8_t { kUnderWay, kYielded, kBack } state = State::kUnderWay;
    int64_t moved_bytes = 0;
  };
  // A process that will make its engine on the trainer's cards; an empty name: on other cards, or none.
  struct Newcomer {
    std::string rollouter = {};
    std::string incarnation = {};
  };
  struct Status {
    CardTurns::Phase phase = CardTurns::Phase::kRollouters;
    int64_t turn = 0;
    std::vector<std::string> holders;  // who is on the cards, or may be
  };

  TurnDesk(const CardTurns::Options& options, Parts parts) : parts_(std::move(parts)), turns_(options) {}

  // -- Streams of rollouters on the trainer's cards. `stream` is never used twice; reports and the end of a stream that
  // another one of the same rollouter has replaced change nothing.
  void Connect(const std::string& rollouter, const std::string& incarnation, int64_t stream, bool yielded, Tell tell);
  void Record(const std::string& rollouter, int64_t stream, const Report& report);
  // `in_order`: its process leaves, so that nothing of it stays on the card.
  void Disconnect(const std::string& rollouter, int64_t stream, bool in_order);

  // -- The step thread.
  // Blocks until the cards are the trainer's. FAILED_PRECONDITION (reason TURN_STUCK): they never will be, and the
  // message names who holds them. CANCELLED (reason TURN_UNWANTED): `is_unwanted`, which is asked twice a second, has
  // said so, and the turn is given back. It must not call this object.
  absl::Status Take(const std::function<bool()>& is_unwanted);
  void GiveBack();
  // Looks for rollouters that do not come back; call it while nothing else is done.
  void Look();

  // -- Any thread.
  // Calls `call` once: at once if the cards are the rollouters', else when the trainer has given them back; `who` counts
  // as being on the cards from then on. It must not block or call this object. The result is for Forget(); 0: `call` was
  // called.
  int64_t CallInRolloutersTurn(const Newcomer& who, std::function<void()> call);
  // Nobody waits for that call any more: it is freed, and will not be called unless it is being called.
  void Forget(int64_t waiting);
  // `who`, whose call was called, cannot be reached any more by whatever it called with. Nothing happens once it has
  // connected.
  void LoseArrival(const Newcomer& who);
  Status GetStatus() const;

 private:
  struct Stream {
    int64_t id = 0;
    Tell tell;
  };
  void Perform(const CardTurns::Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateAway(const std::string& rollouter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TickLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ArriveLocked(const Newcomer& who) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EvictThose(const std::vector<int64_t>& streams);

  const Parts parts_;
  mutable Mutex mutex_;
  CardTurns turns_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Stream> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, bool> away_ ABSL_GUARDED_BY(mutex_);  // as it was said last
  std::vector<int64_t> to_evict_ ABSL_GUARDED_BY(mutex_);
  struct Waiting {
    Newcomer who;
    std::function<void()> call;
  };
  std::map<int64_t, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);  // for the rollouters' turn
  int64_t next_waiting_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Status room_ ABSL_GUARDED_BY(mutex_);  // as it was looked for last
  absl::Status stuck_ ABSL_GUARDED_BY(mutex_);
  absl::Time ticked_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace syncopate::trainer
