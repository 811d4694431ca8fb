#include "bench/train/rank_group.h"
#include "model/cuda/torch_stream.h"
#include "ranks/nccl/nccl_ranks.h"

namespace syncopate::bench {

absl::StatusOr<RankFactory> MakeRankFactory(int32_t world, bool on_gpus) {
  if (!on_gpus) return ThreadRankFactory(world);
  SYNCOPATE_ASSIGN_OR_RETURN(const cuda::NcclId id, cuda::NewNcclId());
  return RankFactory([id, world](int32_t rank) -> absl::StatusOr<std::unique_ptr<Communicator>> {
    return JoinNcclRanks({.device = rank, .rank = rank, .world = world, .stream = model::TorchStream(rank)}, id,
                         /*meet=*/absl::Minutes(5));
  });
}

}  // namespace syncopate::bench
