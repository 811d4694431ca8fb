#include "ranks/late_ranks.h"

#include <utility>

namespace syncopate {

void LateRanks::Connect(std::unique_ptr<Communicator> ranks) {
  SYNCOPATE_CHECK(ranks->rank() == rank_ && ranks->world() == world_);
  MutexLock lock(&mutex_);
  ranks_ = std::move(ranks);
  if (!aborted_.empty()) ranks_->Abort(aborted_);
}

absl::StatusOr<Communicator*> LateRanks::Connected() {
  MutexLock lock(&mutex_);
  if (ranks_ != nullptr) return ranks_.get();
  return Error(absl::StatusCode::kFailedPrecondition, "RANKS_APART", "the ranks have not met yet");
}

absl::Status LateRanks::Finish() {
  SYNCOPATE_ASSIGN_OR_RETURN(Communicator* const ranks, Connected());
  return ranks->Finish();
}

void LateRanks::Abort(const std::string& why) {
  MutexLock lock(&mutex_);
  if (ranks_ != nullptr) {
    ranks_->Abort(why);
  } else if (aborted_.empty()) {
    aborted_ = why;
  }
}

absl::Status LateRanks::Perform(const Collective& call, void* in, void* out) {
  SYNCOPATE_ASSIGN_OR_RETURN(Communicator* const ranks, Connected());
  return ranks->Perform(call, in, out);
}

}  // namespace syncopate
