#include "rollouter/engine/kv_budget.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "rollouter/engine/step_plan.h"

namespace syncopate::rollouter {

int64_t RoomForBlocks(const KvBudget& budget) {
  // The share is of the whole device, so memory used by other processes reduces what is left.
  const int64_t kept_free = budget.total - std::llround(budget.share * static_cast<double>(budget.total));
  return std::max<int64_t>(budget.free - kept_free - budget.reserved - budget.others, 0);
}

absl::StatusOr<int64_t> BlocksThatFit(const KvBudget& budget) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const int64_t room = RoomForBlocks(budget);
  const int64_t fit = room / budget.block_bytes;
  const int64_t of_one = (budget.max_context + kBlockTokens - 1) / kBlockTokens;
  const int64_t needed = std::max(of_one, budget.blocks_asked);
  if (fit < needed) {
    const bool asked = budget.blocks_asked > of_one;
    return Error(absl::StatusCode::kResourceExhausted, "OUT_OF_GPU_MEMORY",
                 absl::StrCat("beside the weights and the engine's ", budget.reserved / kMiB, " MiB, ",
                              budget.others == 0 ? ""
                                                 : absl::StrCat("and ", budget.others / kMiB,
                                                                " MiB for the trainer's send slots, and a base "
                                                                "that may have to be received (run.share_gpu), "),
                              "rollout.gpu_memory ", budget.share, " of the GPU's ", budget.total / kMiB,
                              " MiB leaves ", room / kMiB, " MiB for keys and values; ",
                              asked ? absl::StrCat("rollout.kv_tokens ", budget.blocks_asked * kBlockTokens)
                                    : absl::StrCat("one sequence of ", budget.max_context, " tokens"),
                              " needs ", (needed * budget.block_bytes + kMiB - 1) / kMiB,
                              " MiB: raise rollout.gpu_memory, lower ",
                              asked ? "rollout.kv_tokens" : "the context (model.context_length)",
                              ", or free what other processes use of this GPU"));
  }
  if (budget.blocks_asked > 0) return budget.blocks_asked;
  // One sequence of max_context tokens must fit, even if blocks_of_use is smaller.
  return std::min(fit, std::max(budget.blocks_of_use, of_one));
}

}  // namespace syncopate::rollouter
