#include "tools/run/replica_ranks.h"

#include <algorithm>

#include "base/daemon/exit_code.h"

namespace syncopate::run {

ReplicaRanks::ReplicaRanks(const Options& options)
    : options_(options), alive_(static_cast<size_t>(options.ranks), false) {}

ReplicaRanks::Actions ReplicaRanks::Start() {
  alive_[0] = true;
  return {{Action::Kind::kStart, 0}};
}

ReplicaRanks::Actions ReplicaRanks::OnListening() {
  Actions actions;
  if (state_ != State::kWaiting) return actions;
  state_ = State::kRunning;
  for (int64_t rank = 1; rank < options_.ranks; ++rank) {
    alive_[static_cast<size_t>(rank)] = true;
    actions.push_back({Action::Kind::kStart, rank});
  }
  return actions;
}

ReplicaRanks::Actions ReplicaRanks::OnExit(int64_t rank, const ChildExit& exit, absl::Time now) {
  alive_[static_cast<size_t>(rank)] = false;
  const int code = exit.by_signal ? daemon::kExitLostPeer : exit.code;
  if (!killed_) {
    if (rank == 0) rank0_ = code;
    if (!exit.by_signal && (code == daemon::kExitBadConfig || code == daemon::kExitFenced))
      final_ = final_.value_or(code);
    if (code != daemon::kExitDone) first_failure_ = first_failure_.value_or(code);
  }
  if (std::none_of(alive_.begin(), alive_.end(), [](bool alive) { return alive; })) {
    state_ = State::kDone;
    return {};
  }
  // After a request to stop, any exit code of rank 0 counts as orderly: the other ranks follow it.
  const bool is_well = code == daemon::kExitDone || (rank == 0 && interrupted_ && !exit.by_signal);
  EndBy(now + (is_well ? options_.grace : options_.lost_grace));
  return {};
}

ReplicaRanks::Actions ReplicaRanks::OnInterrupt(absl::Time now) {
  if (interrupted_) return KillAll();
  interrupted_ = true;
  EndBy(now + options_.grace + options_.stop_margin);
  if (!IsAlive(0)) return {};  // the other ranks are about to end
  return {{Action::Kind::kTerminate, 0}};
}

ReplicaRanks::Actions ReplicaRanks::OnTick(absl::Time now) { return now < kill_at_ ? Actions() : KillAll(); }

int ReplicaRanks::exit_code() const {
  if (final_.has_value()) return *final_;
  if (first_failure_.has_value()) return *first_failure_;
  return rank0_.value_or(daemon::kExitFailed);  // killed
}

// Sets the deadline unless an earlier one is set.
void ReplicaRanks::EndBy(absl::Time deadline) {
  state_ = State::kEnding;
  kill_at_ = std::min(kill_at_, deadline);
}

ReplicaRanks::Actions ReplicaRanks::KillAll() {
  Actions actions;
  killed_ = true;
  kill_at_ = absl::InfiniteFuture();
  for (int64_t rank = 0; rank < options_.ranks; ++rank) {
    if (IsAlive(rank)) actions.push_back({Action::Kind::kKill, rank});
  }
  return actions;
}

}  // namespace syncopate::run
