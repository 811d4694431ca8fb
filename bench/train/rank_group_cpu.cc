#include <utility>
#include <vector>

#include "base/status.h"
#include "bench/train/rank_group.h"

namespace syncopate::bench {

absl::StatusOr<RankFactory> MakeRankFactory(int32_t world, bool on_gpus) {
  if (on_gpus) return Error(absl::StatusCode::kFailedPrecondition, "NO_CUDA", "this build has no CUDA");
  return ThreadRankFactory(world);
}

}  // namespace syncopate::bench
