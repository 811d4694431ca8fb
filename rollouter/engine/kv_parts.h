#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "rollouter/engine/kv_budget.h"
#include "rollouter/engine/step_plan.h"

namespace syncopate::rollouter {

// The places of blocks in one piece of a GPU's memory. A *piece* is the keys, or the values, of one block in one layer;
// pieces of equal size lie behind each other. Blocks are cut into parts, each of whole blocks of all layers: [layers]
// [keys, values][blocks of the part]. So the last parts are one range of memory, which may be unmapped while the others
// are in use. Pure.
//
// The piece of block b in layer l is number Place(b) + l * layer_pieces, and value_pieces further for values. Kernels
// are given places instead of blocks, and so need to know nothing of parts.
struct KvParts {
  int64_t part_blocks = 0;  // blocks of a part
  int64_t part_pieces = 0;  // distance from one part to the next
  int64_t parts = 1;
  int64_t lent_parts = 0;    // of them, the last ones, which are lent
  int64_t layer_pieces = 0;  // distance from one layer to the next
  int64_t value_pieces = 0;  // distance from keys to values
  int64_t piece_bytes = 0;

  // One part that is never lent: all keys, [layers][blocks], then all values.
  static KvParts MakeWhole(int64_t blocks, int64_t layers, int64_t piece_bytes);

  int64_t blocks() const { return parts * part_blocks; }
  int64_t lent_blocks() const { return lent_parts * part_blocks; }
  int64_t bytes() const { return parts * part_pieces * piece_bytes; }
  // The lent parts lie behind this offset.
  int64_t lent_offset() const { return (parts - lent_parts) * part_pieces * piece_bytes; }
  int32_t Place(BlockIndex block) const {
    return static_cast<int32_t>(block + block / part_blocks * (part_pieces - part_blocks));
  }
};

// The form of a model's keys and values on one GPU.
struct KvForm {
  int64_t layers = 0;
  int64_t piece_bytes = 0;
  int64_t block_bytes() const { return 2 * layers * piece_bytes; }
};

enum class KvLending : uint8_t {
  kNever,  // every weight set has memory of its own
  kAuto,   // lends if two weight sets leave fewer blocks than are of use
  kAlways,
};

struct KvChoice {
  KvParts parts;
  bool lends = false;
  std::string why;  // for the log: the sum that decided; empty with kNever
};

// Chooses the blocks for `budget`, whose `free` counts one weight set as allocated unless `lending` is kNever, and
// whether they lend `set_bytes` (as mapped, a multiple of the GPU's granularity) to a second one. RESOURCE_EXHAUSTED
// (reason OUT_OF_GPU_MEMORY) as BlocksThatFit; with kAlways also if one sequence of the longest has no room beside the
// lent blocks. Pure.
absl::StatusOr<KvChoice> ChooseKvParts(const KvBudget& budget, const KvForm& form, KvLending lending,
                                       int64_t set_bytes);

}  // namespace syncopate::rollouter
