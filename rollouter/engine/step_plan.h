#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/policy_version.h"
#include "base/trajectory.h"

// What the scheduler tells a runner to do in one step. Plain data that stands alone: it can be sent to the ranks of a
// replica, and what it says does not change when the scheduler goes on.
namespace syncopate::rollouter {

// Tokens whose keys and values lie together. A sequence's keys and values lie in the blocks of its table: position p in
// block table[p / kBlockTokens], at p % kBlockTokens.
constexpr int32_t kBlockTokens = 16;

// Where a running sequence has its block table and the state of its sampler: 0 to max_sequences - 1.
using SlotIndex = int32_t;
// A block of the storage on the device: 0 to blocks - 1.
using BlockIndex = int32_t;

// Between the device's storage and the host's.
struct BlockSwap {
  BlockIndex block = 0;
  BlockIndex host_block = 0;
};

// The first `tokens` tokens of a block become those of another, in all layers. (A whole block may be copied.)
struct BlockCopy {
  BlockIndex from = 0;
  BlockIndex to = 0;
  int32_t tokens = 0;
};

// A sequence begins in a slot: whatever the slot held is forgotten, its table too.
struct SlotStart {
  SlotIndex slot = 0;
  uint64_t key = 0;  // of its request, and which sample of it: for logs and times
  int32_t sample = 0;
  uint64_t seed = 0;
  std::shared_ptr<const std::vector<int32_t>> prompt;
  std::shared_ptr<const SamplingParams> sampling;
  std::vector<int32_t> drawn;  // its answer so far: not empty if it ran before in another slot
};

// The block table of `slot` says `block` at `index` from now on.
struct TableEntry {
  SlotIndex slot = 0;
  int32_t index = 0;
  BlockIndex block = 0;
};

// Tokens [begin, begin + tokens.size()) of the sequence in `slot`. Everything before `begin` is in its blocks.
struct PrefillChunk {
  SlotIndex slot = 0;
  int32_t begin = 0;
  std::vector<int32_t> tokens;
  // The slots that draw their next token from the logits of the chunk's last one. Empty if more of the prompt follows;
  // several if several samples share the prompt.
  std::vector<SlotIndex> draws;
};

// The token that the slot drew last goes in at `position`, and the slot draws the next one. That token may be known to
// the runner alone: the plan is made before the result of the one before it is looked at.
struct DecodeRow {
  SlotIndex slot = 0;
  int32_t position = 0;
};

// One step. A runner executes plans in order, and the parts of a plan in the order of the fields: swaps out, swaps in,
// copies, starts, tables, then all rows at once. Within one field nothing depends on order: no block is the target of
// two copies, and none is source and target. Each slot has at most one chunk or row.
//
// A slot draws with Philox(seed, n), n = the tokens that its sequence has drawn before: for a row that goes in at
// `position` that is position + 1 - prompt.size(). Draws are numbered: first those of the chunks in order, then one a
// decode row in order.
struct StepPlan {
  int64_t id = 0;         // 1, 2, ..
  PolicyVersion version;  // of the weights it runs on
  std::vector<BlockSwap> swaps_out;
  std::vector<BlockSwap> swaps_in;
  std::vector<BlockCopy> copies;
  std::vector<SlotStart> starts;
  std::vector<TableEntry> tables;
  std::vector<PrefillChunk> chunks;
  std::vector<DecodeRow> rows;

  bool HasRows() const { return !chunks.empty() || !rows.empty(); }
  bool IsEmpty() const { return !HasRows() && swaps_out.empty() && swaps_in.empty() && copies.empty(); }
  int64_t draws() const {
    int64_t count = static_cast<int64_t>(rows.size());
    for (const PrefillChunk& chunk : chunks) count += static_cast<int64_t>(chunk.draws.size());
    return count;
  }
};

}  // namespace syncopate::rollouter
