#include "bench/sync/sync_rounds.h"

#include <algorithm>
#include <numeric>

#include "base/status.h"

namespace syncopate::bench {

SyncRounds::SyncRounds(const SyncCase& sync_case, BenchCast* cast,
                       const std::function<void(const std::string&)>& progress)
    : sync_case_(sync_case), cast_(*cast), progress_(progress), replicas_(sync_case.replicas) {
  std::iota(replicas_.begin(), replicas_.end(), 0);
}

void SyncRounds::ReportProgress(const std::string& what) const {
  if (progress_ != nullptr) progress_(what);
}

absl::StatusOr<std::vector<SyncSample>> SyncRounds::SyncOnce() {
  // Decoding without a sync, for comparison with decoding during a sync.
  SYNCOPATE_RETURN_IF_ERROR(cast_.Idle(sync_case_.calm));
  SYNCOPATE_RETURN_IF_ERROR(PublishNext());
  return cast_.AwaitCommits(step_, replicas_, kSyncLimit);
}

absl::Status SyncRounds::PublishNext() { return cast_.Publish(++step_); }

bool SyncRounds::AllServe(int64_t step) const {
  return std::all_of(replicas_.begin(), replicas_.end(),
                     [&](int32_t replica) { return cast_.ServedAt(step, replica).has_value(); });
}

double SyncRounds::AllServedAt(int64_t step) const {
  double last = 0;
  for (int32_t replica : replicas_) last = std::max(last, cast_.ServedAt(step, replica).value_or(0));
  return last;
}

std::vector<std::string> SyncRounds::Receivers() const {
  std::vector<std::string> names;
  for (int32_t replica : replicas_) {
    for (int32_t rank = 0; rank < sync_case_.tensor_parallel; ++rank) names.push_back(ReceiverName(replica, rank));
  }
  return names;
}

std::vector<std::string> SyncRounds::Sources() const {
  std::vector<std::string> names;
  for (int32_t rank = 0; rank < sync_case_.sources; ++rank) names.push_back(SourceName(rank));
  return names;
}

}  // namespace syncopate::bench
