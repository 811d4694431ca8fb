#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "tools/run/supervision.h"

namespace syncopate::run {

// Decides when the ranks of one rollouter start and end, if something else restarts the whole rollouter, such as
// Kubernetes its container: no rank is started twice. Sans-IO: its owner reports events with their time, performs the
// returned actions, and reports again. No thread, no clock; not thread-safe.
//
//   waiting ──rank 0 listens──► running ──a rank ends, or a request to stop──► ending ──all have ended──► done
//      └──────────────rank 0 ends, or a request to stop───────────────────────────┘
//
// Rank 0 starts first, the others once it listens for them. They end together, each by itself: rank 0 tells the others
// to end, or they notice that a rank is lost. A rank that is late is killed. Only rank 0 is asked to stop: it must hand
// back its work, and needs the others for that.
class ReplicaRanks {
 public:
  struct Options {
    int64_t ranks = 1;
    absl::Duration grace = absl::Seconds(5);        // of an orderly stop; rank 0 keeps it by itself
    absl::Duration stop_margin = absl::Seconds(3);  // after the grace, until all are killed
    absl::Duration lost_grace = absl::Seconds(3);   // after a failed rank's end; noticing its silence took 5 s or more
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
  // A second interrupt kills all ranks at once.
  Actions OnInterrupt(absl::Time now);
  Actions OnTick(absl::Time now);

  bool is_waiting() const { return state_ == State::kWaiting; }
  bool done() const { return state_ == State::kDone; }
  // The exit code of the replica, once it is done: a code that says that a restart cannot help (2, 3), if a rank ended
  // with one; else the code of the first rank that failed, 4 if a signal ended it; else rank 0's.
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
  bool killed_ = false;  // later exits are caused by the kill
  absl::Time kill_at_ = absl::InfiniteFuture();
  std::optional<int> final_, first_failure_, rank0_;  // exit codes
};

}  // namespace syncopate::run
