#include "tests/unit/trainer/turns/turns_world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncopate::trainer {

using Kind = CardTurns::Action::Kind;

TurnsWorld::TurnsWorld(uint64_t seed, const MakeTurns& make_turns)
    : random_(seed),
      big_card_(Chance(0.5)),
      break_share_(Chance(0.5) ? 0.6 : 0.2),
      crash_share_(0.2),
      turns_(make_turns(options_)) {
  for (int64_t i = Int(1, 4); i > 0; --i) {
    processes_.push_back({.name = absl::StrCat("rollouter-", i), .incarnation = ++last_incarnation_, .on_card = false});
  }
}

TurnsOutcome TurnsWorld::Run() {
  for (size_t i = 0; i < processes_.size(); ++i) After(Int(0, 3000), [this, i] { Connect(i); });
  After(Int(0, 4000), [this] { AskLater(); });
  After(Int(1000, 20000), [this] { NextFault(); });
  Tick();
  while (!events_.empty() && !over_ && outcome_.errors.empty() && now_ <= kEnd) {
    auto next = events_.extract(events_.begin());
    now_ = next.key();
    next.mapped()();
    CheckClocks();
  }
  if (outcome_.errors.empty() && !over_) CheckEnd();
  return outcome_;
}

void TurnsWorld::Tick() {
  Perform(turns_->Tick(Now()));
  if (asked_ && now_ - asked_at_ > kMostWait) Fail("a turn that never begins");
  // A rollouter that has lost the trainer leaves the card before the trainer takes it for dead.
  for (size_t i = 0; i < processes_.size(); ++i) {
    Process& one = processes_[i];
    const bool lost = one.alive && !one.hung && one.stream == 0 && one.lost_at > 0;
    const bool leaves = one.busy && one.commands.front().yield;
    if (!lost || leaves || !one.on_card || now_ - one.lost_at < 5000) continue;
    one.on_card = one.busy = false;
    ++one.work;
    one.commands.clear();
    ++outcome_.absent;
  }
  After(1000, [this] { Tick(); });
}

size_t TurnsWorld::Find(const std::string& name) const {
  return static_cast<size_t>(
      std::find_if(processes_.begin(), processes_.end(), [&](const Process& one) { return one.name == name; }) -
      processes_.begin());
}

void TurnsWorld::Send(size_t index, std::function<void()> event) {
  Process& process = processes_[index];
  if (process.stream == 0 || process.hung) return;
  process.sent_at = std::max(process.sent_at, now_ + Int(1, 300));
  At(process.sent_at, [this, index, stream = process.stream, event = std::move(event)] {
    if (processes_[index].stream == stream) event();
  });
}

void TurnsWorld::Connect(size_t index) {
  Process& process = processes_[index];
  if (!process.alive || process.hung || process.stream != 0) return;
  process.stream = ++last_stream_;
  process.sent_at = process.told_at = now_;
  process.commands.resize(process.busy ? 1 : 0);  // only the command under way goes on
  Send(index, [this, index, incarnation = process.incarnation, yielded = !process.on_card] {
    processes_[index].evicted = false;
    processes_[index].known_stream = processes_[index].stream;
    Perform(turns_->Connect(processes_[index].name, absl::StrCat(incarnation), yielded, Now()));
  });
}

// The trainer notices up to two seconds later, or when the next stream is opened.
void TurnsWorld::Break(size_t index) {
  Process& process = processes_[index];
  if (process.stream == 0) return;
  const int64_t stream = std::exchange(process.stream, 0);
  ++outcome_.breaks;
  // The trainer does not know of one whose hello was lost; a rollouter's time counts from its last stream that worked.
  if (process.known_stream == stream) {
    process.lost_at = now_;
    After(Int(0, 2000), [this, index, stream] {
      // A newer stream has replaced it.
      if (last_stream_ > stream && processes_[index].stream > stream) return;
      Perform(turns_->Disconnect(processes_[index].name, Now()));
    });
  }
  if (process.alive) After(QuietNow() ? 500 : Int(100, 9000), [this, index] { Connect(index); });
}

void TurnsWorld::Crash(size_t index) {
  Process& process = processes_[index];
  if (!process.alive) return;
  ++outcome_.crashes;
  process.alive = process.on_card = false;
  Break(index);
  const int64_t incarnation = process.incarnation;
  // The call that a newcomer keeps open breaks with it; of one that has connected, too, and then that means nothing.
  if (process.arrived) {
    ++outcome_.lost_arrivals;
    After(Int(0, 2000),
          [this, name = process.name, incarnation] { turns_->LoseArrival(name, absl::StrCat(incarnation), Now()); });
  }
  if (Chance(0.5)) {
    After(5000, [this, index, incarnation] {
      const Process& now = processes_[index];
      if (now.incarnation == incarnation) Perform(turns_->Died(now.name, Now()));
    });
  }
  After(Int(500, 15000), [this, index, incarnation] {
    if (processes_[index].incarnation == incarnation) Restart(index);
  });
}

void TurnsWorld::Hang(size_t index) {
  Process& process = processes_[index];
  if (!process.alive || process.hung) return;
  ++outcome_.hangs;
  process.hung = true;
  After(Chance(0.3) ? 120'000 : Int(5000, 60000), [this, index, incarnation = process.incarnation] {
    if (processes_[index].incarnation == incarnation) Crash(index);  // somebody kills it in the end
  });
}

// A new process is not on the card before it is told whose turn it is, or that it may make its engine.
void TurnsWorld::Restart(size_t index) {
  const std::string name = processes_[index].name;
  // Numbers of work go on, as the old process may have begun some.
  processes_[index] = {
      .name = name, .incarnation = ++last_incarnation_, .on_card = false, .work = processes_[index].work + 1};
  if (Chance(0.5)) return Connect(index);
  AskForModel(index, last_incarnation_);
}

// It is answered in the rollouters' turn, takes the card, and connects when its engine is there.
void TurnsWorld::AskForModel(size_t index, int64_t incarnation) {
  Process& process = processes_[index];
  if (process.incarnation != incarnation || !process.alive || process.hung || process.stream != 0) return;
  if (turns_->IsTrainersTurn()) {
    After(200, [this, index, incarnation] { AskForModel(index, incarnation); });
    return;
  }
  ++outcome_.arrivals;
  process.arrived = true;
  turns_->Arrive(process.name, absl::StrCat(incarnation), Now());
  TakeCard(process);
  After(QuietNow() ? 500 : Int(500, 20000), [this, index, incarnation] {
    if (processes_[index].incarnation == incarnation) Connect(index);
  });
}

void TurnsWorld::NextFault() {
  if (QuietNow()) return;
  const size_t index = static_cast<size_t>(Int(0, std::ssize(processes_) - 1));
  if (Chance(break_share_)) {
    Break(index);
  } else if (Chance(crash_share_)) {
    Crash(index);
  } else if (Chance(0.2)) {
    Hang(index);
  }
  After(Int(500, 20000), [this] { NextFault(); });
}

void TurnsWorld::Tell(const CardTurns::Action& action) {
  const size_t index = Find(action.rollouter);
  Process& process = processes_[index];
  if (process.stream == 0 || process.stream != process.known_stream) return;  // lost with the stream
  process.told_at = std::max(process.told_at, now_ + Int(1, 300));
  const Command command{action.kind == Kind::kTellYield, action.turn, process.stream};
  At(process.told_at, [this, index, command] {
    Process& now = processes_[index];
    if (now.stream != command.stream || now.hung) return;
    now.commands.push_back(command);
    if (!now.busy) Work(index);
  });
}

void TurnsWorld::TakeCard(Process& process) {
  process.on_card = true;
  if (trainer_on_card_ && !process.evicted) Fail("a rollouter that takes the trainer's card");
}

void TurnsWorld::Work(size_t index) {
  Process& process = processes_[index];
  process.busy = true;
  if (!process.commands.front().yield && !process.on_card) TakeCard(process);
  // A slow one receives for up to 25 seconds, and moves bytes all the time.
  const bool slow = !process.commands.front().yield && Chance(0.1);
  Move(index, ++process.work, slow ? Int(5000, 25000) : Int(1, 2000));
}

void TurnsWorld::Move(size_t index, int64_t work, int64_t left) {
  const int64_t part = std::min<int64_t>(left, 2000);
  After(part, [this, index, work, left = left - part] {
    Process& process = processes_[index];
    if (process.work != work || !process.alive || process.hung) return;
    process.bytes += 1000;
    Send(index, [this, index, bytes = process.bytes] { turns_->Moved(processes_[index].name, bytes, Now()); });
    if (left > 0) return Move(index, work, left);
    FinishCommand(index);
  });
}

void TurnsWorld::FinishCommand(size_t index) {
  Process& process = processes_[index];
  const Command done = process.commands.front();
  process.commands.pop_front();
  process.busy = false;
  if (done.yield) process.on_card = false;
  Send(index, [this, index, done] {
    const std::string& name = processes_[index].name;
    Perform(done.yield ? turns_->Yielded(name, done.turn, Now()) : turns_->Back(name, done.turn, Now()));
  });
  if (!process.commands.empty()) Work(index);
}

void TurnsWorld::Perform(const CardTurns::Actions& actions) {
  for (const CardTurns::Action& action : actions) {
    switch (action.kind) {
      case Kind::kTellYield:
      case Kind::kTellBack:
        Tell(action);
        break;
      case Kind::kEvict:
        Evict(action.rollouter);
        break;
      case Kind::kLookForRoom:
        ++outcome_.looked_for_room;
        Perform(turns_->Room(HasRoom(), Now()));
        break;
      case Kind::kBegin:
        BeginTurn();
        break;
      case Kind::kFinish:
        break;
      case Kind::kStuck:
        ++outcome_.stuck;
        over_ = true;
        if (HasRoom()) Fail("stuck although the card has room");
        if (action.holders.empty()) Fail("stuck on nobody");
        break;
    }
  }
}

void TurnsWorld::Evict(const std::string& name) {
  Process& process = processes_[Find(name)];
  ++outcome_.evictions;
  // What is evicted is the process before, or the stream before: the trainer has not heard of this one yet.
  if (process.stream != 0 && process.stream != process.known_stream) return;
  if (process.alive && !process.hung && process.stream != 0) Fail("one that moves bytes is evicted");
  process.evicted = true;
  process.stream = 0;
  if (process.lost_at == 0) process.lost_at = now_;
}

bool TurnsWorld::HasRoom() const {
  return big_card_ || std::none_of(processes_.begin(), processes_.end(),
                                   [](const Process& one) { return one.evicted && one.on_card; });
}

void TurnsWorld::BeginTurn() {
  if (!asked_) return Fail("a turn that nobody wants");
  asked_ = false;
  trainer_on_card_ = true;
  last_begin_ = now_;
  ++outcome_.turns;
  bool somebody_is_missing = false;
  for (const Process& one : processes_) {
    somebody_is_missing |= one.stream == 0;
    if (!one.on_card) continue;
    if (!one.evicted) Fail(absl::StrCat("a turn begins while ", one.name, " is on the card"));
    if (one.evicted && !big_card_) Fail("a turn begins without room");
  }
  outcome_.turns_without_somebody += somebody_is_missing ? 1 : 0;
  After(Int(1, 4000), [this] { GiveBack(); });
}

void TurnsWorld::AskLater() {
  if (asked_ || trainer_on_card_) return;
  asked_ = true;
  asked_at_ = now_;
  Perform(turns_->Ask(Now()));
  if (!Chance(0.15)) return;
  After(Int(1, 1500), [this, at = asked_at_] {
    if (!asked_ || asked_at_ != at) return;
    ++outcome_.withdrawn;
    asked_ = false;
    GiveBack();
  });
}

void TurnsWorld::GiveBack() {
  trainer_on_card_ = false;
  Perform(turns_->GiveBack(Now()));
  After(Chance(0.3) ? 0 : Int(1, 6000), [this] { AskLater(); });
}

// While it knows of a process that has left the card, its clocks stand still.
void TurnsWorld::CheckClocks() {
  for (const Process& one : processes_) {
    const bool left = one.stream != 0 && one.alive && !one.on_card && one.told_at + 1000 < now_;
    if (!left || one.hung || one.evicted || turns_->phase() != CardTurns::Phase::kTrainer) continue;
    if (!turns_->IsAway(one.name)) Fail("the clock of one runs that has left the card");
  }
}

void TurnsWorld::CheckEnd() {
  if (now_ - last_begin_ > kMostWait) Fail("no turn for a long time");
  for (const Process& one : processes_) {
    if (!one.alive || one.hung) continue;
    if (one.stream == 0) Fail("the world has left a stream broken");
    const bool waits = turns_->phase() != CardTurns::Phase::kRollouters;
    if (!one.on_card && one.commands.empty() && !waits && one.told_at + 1000 < now_) {
      Fail(absl::StrCat(one.name, " never came back"));
    }
  }
}

}  // namespace syncopate::trainer
