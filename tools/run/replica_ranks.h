#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "tools/run/supervision.h"

namespace syncopate::run {

// Decides when the ranks of one rollouter start and end where something else starts the rollouter again as a whole, such as
// Kubernetes its container: none is started twice. Sans-IO: its owner reports what happened with the time, performs the
// actions that come back, and reports again. No thread, no clock; not thread-safe.
//
//   waiting ──rank 0 listens──► running ──a rank ends, or a request to stop──► ending ──all have ended──► done
//      └──────────────rank 0 ends, or a request to stop───────────────────────────┘
//
// Rank 0 starts first and the others once it listens for them. They end together, each by itself: the others are told by
// rank 0, or find that one is lost. Whoever is late is killed. A request to stop is rank 0's to follow, as it has work to
// hand back, for which it needs the others.
class ReplicaRanks {
 public:
  struct Options {
    int64_t ranks = 1;
    absl::Duration grace = absl::Seconds(5);        // of an orderly stop, which rank 0 keeps by itself
    absl::Duration stop_margin = absl::Seconds(3);  // beyond that, until all are killed
    absl::Duration lost_grace =
        absl::Seconds(3);  // from the end of one that failed, for which silence took 5 s or more
  };
  struct Action {
    enum class Kind : uint8_t { kStart, kTerminate, kKill };  // the last two: SIGTERM, SIGKILL
    Kind kind = Kind::kStart;
    int64_t rank = 0;
    friend bool operator==(const Action&, const Action&) = default;
  };
  using Actions = std::vector<Action>;

  explicit ReplicaRanks(const Options& options);

  Actions Start();
  // Rank 0 listens for the others.
  Actions OnListening();
  Actions OnExit(int64_t rank, const ChildExit& exit, absl::Time now);
  // A second one ends all at once.
  Actions OnInterrupt(absl::Time now);
  Actions OnTick(absl::Time now);

  bool is_waiting() const { return state_ == State::kWaiting; }
  bool done() const { return state_ == State::kDone; }
  // Of the whole, once it is done: what says that no other start will do better (2, 3) if one rank ended with that; else
  // what the first one to fail ended with, 4 if a signal ended it; else what rank 0 did.
  int exit_code() const;

 private:
  enum class State : uint8_t { kWaiting, kRunning, kEnding, kDone };

  bool IsAlive(int64_t rank) const { return alive_[static_cast<size_t>(rank)]; }
  void EndBy(absl::Time deadline);
  Actions KillAll();

  const Options options_;
  State state_ = State::kWaiting;
  std::vector<bool> alive_;
  bool interrupted_ = false;
  bool killed_ = false;  // what ends from now on, ends by that
  absl::Time kill_at_ = absl::InfiniteFuture();
  std::optional<int> final_, first_failure_, rank0_;  // exit codes
};

}  // namespace syncopate::run
