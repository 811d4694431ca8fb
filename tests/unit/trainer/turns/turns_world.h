#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "trainer/turns/card_turns.h"

namespace syncopate::trainer {

using MakeTurns = std::function<std::unique_ptr<CardTurns>(const CardTurns::Options&)>;

template <typename T = CardTurns>
MakeTurns MakeTurnsWith() {
  return [](const CardTurns::Options& options) { return std::make_unique<T>(options); };
}

struct TurnsOutcome {
  std::vector<std::string> errors;  // the run ends with the first error
  int64_t turns = 0, withdrawn = 0, evictions = 0, stuck = 0, crashes = 0, hangs = 0, breaks = 0, absent = 0;
  int64_t looked_for_room = 0, turns_without_somebody = 0, arrivals = 0, lost_arrivals = 0;
};

// A trainer and up to four rollouters on one card, by `seed`: streams with delays that break and are opened again,
// processes that crash, hang with their memory and are started again, slow ones that move bytes all the time, and a
// trainer that wants the card, changes its mind and trains. Returns what CardTurns let go wrong.
class TurnsWorld {
 public:
  TurnsWorld(uint64_t seed, const MakeTurns& make_turns);
  TurnsOutcome Run();

 private:
  struct Command {
    bool yield = false;
    int64_t turn = 0;
    int64_t stream = 0;  // that brought it
  };
  // One process of a rollouter; a crash replaces it.
  struct Process {
    std::string name;
    int64_t incarnation = 0;
    bool alive = true;
    bool hung = false;     // answers nothing, and keeps what it has on the card
    bool evicted = false;  // the trainer has given it up
    bool on_card = true;
    int64_t stream = 0;        // 0: none
    int64_t known_stream = 0;  // on which the trainer talks to it
    int64_t lost_at = 0;       // when its stream broke
    bool arrived = false;      // it was answered, and may make its engine
    int64_t bytes = 0;
    bool busy = false;  // with commands.front()
    int64_t work = 0;   // the number of what it is busy with
    std::deque<Command> commands = {};
    int64_t sent_at = 0, told_at = 0;  // when the last message arrives, each way: streams keep the order
  };

  int64_t Int(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  bool Chance(double p) { return std::uniform_real_distribution<double>(0, 1)(random_) < p; }
  void Fail(const std::string& what) { outcome_.errors.push_back(what); }
  absl::Time Now() const { return absl::FromUnixMillis(now_); }
  void At(int64_t time, std::function<void()> event) { events_.emplace(time, std::move(event)); }
  void After(int64_t delay, std::function<void()> event) { At(now_ + delay, std::move(event)); }

  // Calls `event` after the delay of the stream, unless the stream or the process is gone by then.
  void Send(size_t index, std::function<void()> event);
  void Connect(size_t index);
  void Break(size_t index);
  void Crash(size_t index);
  void Hang(size_t index);
  void Restart(size_t index);
  void AskForModel(size_t index, int64_t incarnation);
  void NextFault();
  void Tell(const CardTurns::Action& action);
  void Work(size_t index);
  void Move(size_t index, int64_t work, int64_t left);
  void FinishCommand(size_t index);
  void TakeCard(Process& process);

  void Perform(const CardTurns::Actions& actions);
  void Evict(const std::string& name);
  void BeginTurn();
  void AskLater();
  void GiveBack();
  bool HasRoom() const;
  void Tick();
  void CheckClocks();
  void CheckEnd();
  size_t Find(const std::string& name) const;
  bool QuietNow() const { return now_ > kFaultsUntil; }

  static constexpr int64_t kFaultsUntil = 240'000, kEnd = 420'000, kMostWait = 80'000;

  std::mt19937_64 random_;
  const bool big_card_;  // it has room for the trainer and what a hung process keeps
  const double break_share_, crash_share_;
  const CardTurns::Options options_ = {.arrive_limit = absl::Seconds(40)};
  std::unique_ptr<CardTurns> turns_;
  std::multimap<int64_t, std::function<void()>> events_;
  int64_t now_ = 0, last_stream_ = 0, last_incarnation_ = 0;
  std::vector<Process> processes_;
  bool trainer_on_card_ = false, asked_ = false, over_ = false;
  int64_t asked_at_ = 0, last_begin_ = 0;
  TurnsOutcome outcome_;
};

}  // namespace syncopate::trainer
