#include "rollouter/engine/kv_parts.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::rollouter {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// Memory is mapped in units of this size.
constexpr int64_t kGranularity = 2 * kMiB;
// Parts are smaller than a weight set, so that little memory is left over; but not so small that the ends of parts,
// which are rounded up, would cost as much.
constexpr int64_t kMostLentParts = 8;
constexpr int64_t kSmallPart = 64 * kMiB;

int64_t DivideUp(int64_t value, int64_t by) { return (value + by - 1) / by; }

// Parts in `room` bytes of which the last ones have at least `set_bytes`: as many as fit, at most for `most` blocks.
// The number of parts may be as small as 0.
KvParts Cut(const KvForm& form, int64_t set_bytes, int64_t room, int64_t most, bool lent_beside) {
  KvParts cut;
  cut.piece_bytes = form.piece_bytes;
  cut.lent_parts = std::clamp<int64_t>(set_bytes / kSmallPart, 1, kMostLentParts);
  const int64_t unit = std::lcm(kGranularity, form.piece_bytes);
  const int64_t part_bytes = DivideUp(std::max(DivideUp(set_bytes, cut.lent_parts), form.block_bytes()), unit) * unit;
  cut.part_pieces = part_bytes / form.piece_bytes;
  cut.part_blocks = part_bytes / form.block_bytes();
  cut.layer_pieces = 2 * cut.part_blocks;
  cut.value_pieces = cut.part_blocks;
  const int64_t of_use = DivideUp(most, cut.part_blocks) + (lent_beside ? cut.lent_parts : 0);
  cut.parts = std::min(room / part_bytes, of_use);
  return cut;
}

}  // namespace

KvParts KvParts::MakeWhole(int64_t blocks, int64_t layers, int64_t piece_bytes) {
  return {.part_blocks = blocks,
          .part_pieces = 2 * layers * blocks,
          .layer_pieces = blocks,
          .value_pieces = layers * blocks,
          .piece_bytes = piece_bytes};
}

absl::StatusOr<KvChoice> ChooseKvParts(const KvBudget& budget, const KvForm& form, KvLending lending,
                                       int64_t set_bytes) {
  KvBudget beside_two = budget;
  beside_two.block_bytes = form.block_bytes();
  if (lending != KvLending::kNever) beside_two.reserved += set_bytes;
  const auto whole = [&](std::string why) -> absl::StatusOr<KvChoice> {
    SYNCOPATE_ASSIGN_OR_RETURN(const int64_t blocks, BlocksThatFit(beside_two));
    return KvChoice{KvParts::MakeWhole(blocks, form.layers, form.piece_bytes), /*lends=*/false, std::move(why)};
  };
  if (lending == KvLending::kNever) return whole("");

  const int64_t room = RoomForBlocks(budget);
  const int64_t fit_beside_two = std::max<int64_t>(room - set_bytes, 0) / form.block_bytes();
  const int64_t of_one = DivideUp(budget.max_context, kBlockTokens);
  const int64_t asked = budget.blocks_asked;
  const int64_t wanted = asked > 0 ? asked : std::max(budget.blocks_of_use, of_one);
  const KvParts cut = Cut(form, set_bytes, room, wanted, /*lent_beside=*/asked == 0);
  const int64_t stay = cut.blocks() - cut.lent_blocks();
  const bool fits = stay >= of_one && cut.blocks() >= asked;
  const std::string sum =
      absl::StrCat("two weight sets of ", set_bytes / kMiB, " MiB leave keys and values of ",
                   fit_beside_two * kBlockTokens, " tokens, one leaves ", cut.blocks() * kBlockTokens, ", of which ",
                   cut.lent_blocks() * kBlockTokens, " are lent for a sync; ", wanted * kBlockTokens,
                   asked > 0 ? " are asked for (rollout.kv_tokens)" : " are of use");
  if (lending == KvLending::kAuto && (fit_beside_two >= wanted || !fits || cut.blocks() <= fit_beside_two)) {
    return whole(absl::StrCat("remap: ", sum));
  }
  if (fits) return KvChoice{cut, /*lends=*/true, absl::StrCat("borrowed: ", sum)};
  return Error(absl::StatusCode::kResourceExhausted, "OUT_OF_GPU_MEMORY",
               absl::StrCat("sync.install: borrowed lends ", cut.lent_blocks() * form.block_bytes() / kMiB,
                            " MiB of keys and values to the new weights, and one sequence of ", budget.max_context,
                            " tokens needs ", of_one * form.block_bytes() / kMiB, " MiB beside them",
                            asked > 0 ? absl::StrCat(", rollout.kv_tokens ", asked * kBlockTokens, " in all") : "",
                            "; there are ", room / kMiB,
                            " MiB: raise rollout.gpu_memory, set sync.install to in_place, or free what other "
                            "processes use of this GPU"));
}

}  // namespace syncopate::rollouter
