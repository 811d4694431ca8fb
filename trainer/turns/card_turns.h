#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace syncopate::trainer {

// Decides whose turn it is on the cards that a trainer shares with rollouters (run.share_gpu). A card has one owner: the
// rollouters generate on it until the trainer has a batch; then they yield it, the trainer loads its state, makes the
// step, publishes and leaves; then they receive the weights and go on.
//
//                Ask()                  nobody is left on the cards             GiveBack()
//   kRollouters ───────► kYielding ───────────────────────────────► kTrainer ───────► kReceiving ──► kRollouters
//                            └──────────────────── GiveBack() ───────────────────────────▲     all are back
//
// A rollouter that is about to make its engine counts from then on, and has `arrive_limit` to connect: what it measures
// of the card must stay true. If it is known to have gone meanwhile, it is evicted as if its stream had broken. A rollouter that the cards wait for and that moves no byte for `still_limit` is evicted. An evicted process may keep
// its memory: the trainer then begins when the card has room, and is stuck if it has none for `room_limit`. A rollouter
// whose stream breaks may still be on the card: it counts until it has connected again or is known to be dead; when
// `absent_limit` has passed it is evicted. A rollouter yields by itself when it has had no stream for half of that.
//
// Sans-IO: events and the time go in, actions come out; no thread, no clock. Not thread-safe.
class CardTurns {
 public:
  enum class Phase : uint8_t { kRollouters, kYielding, kTrainer, kReceiving };

  struct Options {
    absl::Duration still_limit = absl::Seconds(10);
    absl::Duration absent_limit = absl::Seconds(10);  // more than twice what a rollouter needs to leave the card
    absl::Duration room_limit = absl::Seconds(10);
    absl::Duration arrive_limit = absl::Seconds(60);  // at least absent_limit
    // Looks for room before every turn, and not only after an eviction: memory of a process that has ended goes later
    // than the process.
    bool looks_always = false;
    absl::Status Validate() const;  // INVALID_ARGUMENT (reason BAD_OPTIONS) unless the limits are as they say
  };

  struct Action {
    enum class Kind : uint8_t {
      kTellYield,    // tell `rollouter` to leave the card for turn `turn`, and to report when it has
      kTellBack,     // tell `rollouter` that the card is the rollouters' again, and to report when it generates
      kEvict,        // `rollouter` moves nothing, or is absent for too long: end it
      kLookForRoom,  // call Room()
      kBegin,        // the card is the trainer's
      kFinish,       // all are back
      kStuck,        // the turn cannot begin: `holders` keep the card. No other action follows
    };
    Kind kind = Kind::kBegin;
    std::string rollouter = {};
    int64_t turn = 0;
    std::vector<std::string> holders = {};
    friend bool operator==(const Action&, const Action&) = default;
  };
  using Actions = std::vector<Action>;

  explicit CardTurns(const Options& options) : options_(options) {}
  virtual ~CardTurns() = default;

  // -- Of a rollouter on one of the trainer's cards; its name is the replica's.
  // Its process `incarnation` takes memory of the card from now on, and will connect. Only in the rollouters' turn.
  void Arrive(const std::string& rollouter, const std::string& incarnation, absl::Time now);
  // The call by which it has arrived has broken: if it has not connected, its process has probably ended.
  void LoseArrival(const std::string& rollouter, const std::string& incarnation, absl::Time now);
  // Its process `incarnation` has a stream now. `yielded`: nothing of it is on the card. An older incarnation is dead.
  Actions Connect(const std::string& rollouter, const std::string& incarnation, bool yielded, absl::Time now);
  Actions Disconnect(const std::string& rollouter, absl::Time now);
  Actions Died(const std::string& rollouter, absl::Time now);
  // It has left the card for turn `turn`, or is back after it. Reports of other turns change nothing.
  Actions Yielded(const std::string& rollouter, int64_t turn, absl::Time now);
  Actions Back(const std::string& rollouter, int64_t turn, absl::Time now);
  // It has moved so many bytes since it started: from and to host memory, and received.
  void Moved(const std::string& rollouter, int64_t bytes, absl::Time now);

  // -- Of the trainer.
  // It wants the cards. Precondition: neither asked nor in a turn since the last GiveBack(), or the start.
  Actions Ask(absl::Time now);
  // It has left the cards, or no longer wants them. Precondition: it has asked.
  Actions GiveBack(absl::Time now);
  // Whether the card has room for the trainer although evicted processes may keep memory of it.
  Actions Room(bool has_room, absl::Time now);

  // Call about once a second.
  Actions Tick(absl::Time now);

  Phase phase() const { return phase_; }
  // It has asked for the cards, and has not given them back.
  bool IsTrainersTurn() const { return phase_ == Phase::kYielding || phase_ == Phase::kTrainer; }
  int64_t turn() const { return turn_; }  // the number of the latest turn; 0: there was none
  // True from the moment at which it is told to yield until it is back: clocks of its work stand still.
  bool IsAway(const std::string& rollouter) const;
  // Whether that process has a stream.
  bool IsConnected(const std::string& rollouter, const std::string& incarnation) const;
  std::vector<std::string> Holders() const;  // who is on the card, or may be

 protected:
  struct Rollouter {
    std::string incarnation;
    bool connected = true;
    bool on_card = true;  // it may have memory of the card
    bool away = false;    // told to yield, and not back yet
    int64_t bytes = 0;
    absl::Time moved = {};         // when `bytes` last grew, or the wait for it began
    absl::Time absent_since = {};  // if not connected
  };
  // Rules that tests override to prove that a check detects the fault.
  virtual bool Holds(const Rollouter& rollouter) const { return rollouter.on_card; }
  virtual bool IsStill(const Rollouter& rollouter, absl::Time now) const {
    return now - rollouter.moved >= options_.still_limit;
  }
  virtual bool NeedsRoom() const { return options_.looks_always || !evicted_.empty(); }
  virtual bool CountsArrivals() const { return true; }
  virtual bool TellsNewcomers() const { return true; }
  virtual bool CountsBytes() const { return true; }

 private:
  // Whether the cards wait for it.
  bool IsAwaited(const Rollouter& rollouter) const;
  void TellYield(const std::string& name, Rollouter& rollouter, absl::Time now, Actions* actions);
  void TellBack(const std::string& name, Rollouter& rollouter, absl::Time now, Actions* actions);
  void BeginYielding(absl::Time now, Actions* actions);
  bool IsAnyOnCard() const;
  bool IsAnyAwaited() const;
  void Begin(Actions* actions);
  // Does what is possible now.
  void Proceed(absl::Time now, Actions* actions);

  const Options options_;
  Phase phase_ = Phase::kRollouters;
  bool asked_ = false;  // in kReceiving: the next turn is to begin as soon as all are back
  int64_t turn_ = 0;
  std::map<std::string, Rollouter> rollouters_;
  std::map<std::string, std::string> evicted_;       // value: incarnation; its memory may be there
  std::set<std::string> left_;                       // have ended since the last turn began: so may theirs
  absl::Time room_wanted_ = absl::InfiniteFuture();  // since when only room is missing
};

}  // namespace syncopate::trainer
