#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/policy_version.h"
#include "base/trajectory.h"

// The work of one step, from the scheduler to a runner. Plain data without references to the scheduler: it can be sent
// to the ranks of a replica, and it does not change when the scheduler plans further.
namespace syncopate::rollouter {

// The number of tokens whose keys and values share a block. Position p of a sequence is in block table[p /
// kBlockTokens] of its table, at p % kBlockTokens.
constexpr int32_t kBlockTokens = 16;

// The place of a running sequence's block table and sampler state: 0 to max_sequences - 1.
using SlotIndex = int32_t;
// A block of the storage on the device: 0 to blocks - 1.
using BlockIndex = int32_t;

// A copy of one block between the device's storage and the host's.
struct BlockSwap {
  BlockIndex block = 0;
  BlockIndex host_block = 0;
};

// Copies the first `tokens` tokens of block `from` to block `to`, in all layers. (A runner may copy the whole block.)
struct BlockCopy {
  BlockIndex from = 0;
  BlockIndex to = 0;
  int32_t tokens = 0;
};

// The adapters that compute a sequence: 0 is the policy's, in the plan's live set; kBaseAdapter none, so that the base
// answers; PinnedAdapter(set) those of one adapter set, whatever set is live.
constexpr int64_t kBaseAdapter = -1;
constexpr int64_t PinnedAdapter(int32_t set) { return 1 + set; }
// The adapter set that computes a sequence of `adapter` in a plan whose live set is `live`; kNoSet: the base.
constexpr int32_t kNoSet = -1;
constexpr int32_t GetAdapterSet(int64_t adapter, int32_t live) {
  return adapter == kBaseAdapter ? kNoSet : adapter == 0 ? live : static_cast<int32_t>(adapter - 1);
}

// Starts a sequence in a slot: the earlier state of the slot, including its table, is forgotten.
struct SlotStart {
  SlotIndex slot = 0;
  uint64_t key = 0;  // the request and the sample, for logs and timings
  int32_t sample = 0;
  uint64_t seed = 0;
  std::shared_ptr<const std::vector<int32_t>> prompt;
  std::shared_ptr<const SamplingParams> sampling;
  // The tokens of its answer so far, given ones too: not empty if it ran before in another slot, or began with tokens.
  std::vector<int32_t> drawn;
  int64_t adapter = 0;  // see kBaseAdapter
};

// Sets entry `index` of the block table of `slot` to `block`.
struct TableEntry {
  SlotIndex slot = 0;
  int32_t index = 0;
  BlockIndex block = 0;
};

// Computes tokens [begin, begin + tokens.size()) of the sequence in `slot`. Everything before `begin` is already in its
// blocks.
struct PrefillChunk {
  SlotIndex slot = 0;
  int32_t begin = 0;
  std::vector<int32_t> tokens;
  // The slots that draw their next token from the logits of the chunk's last token. Empty if more of the prompt
  // follows; several if several samples share the prompt.
  std::vector<SlotIndex> draws;
};

// The token that the slot drew last is input at `position`, and the slot draws the next one. Only the runner may know
// that token: the plan may be made before the result of the previous plan is read.
struct DecodeRow {
  SlotIndex slot = 0;
  int32_t position = 0;
};

// One step. A runner executes plans in order, and the parts of a plan in the order of the fields: swaps out, swaps in,
// copies, starts, tables, then all rows at once. Within one field the order does not matter: no block is the target of
// two copies, and none is source and target. Each slot has at most one chunk or row.
//
// A slot draws with Philox(seed, n), where n is the number of tokens of its answer before, given ones counted: for a
// row that is input at `position` this is position + 1 - prompt.size(). Draws are numbered: first the draws of the
// chunks in order, then one for each decode row in order.
struct StepPlan {
  int64_t id = 0;         // 1, 2, ..
  PolicyVersion version;  // the version of the weights it runs on
  int32_t live_set = 0;   // the adapter set of that version, with runners of WeightArenas::adapter_sets()
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
