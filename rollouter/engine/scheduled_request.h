#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/trajectory.h"
#include "rollouter/engine/block_pool.h"
#include "rollouter/engine/step_plan.h"

// What the scheduler knows of a request and its samples, and what follows from that alone. What it does with them is in
// scheduler.h.
namespace syncopate::rollouter {

// What the scheduler is asked for: one prompt, and a sample of it for each seed.
struct SchedulerRequest {
  uint64_t key = 0;  // the caller's name for it, unique among those it has added
  std::shared_ptr<const std::vector<int32_t>> prompt;
  std::shared_ptr<const SamplingParams> sampling;
  std::vector<uint64_t> seeds;  // one a sample
  bool first = false;
  int32_t priority = 0;
  int64_t deadline = INT64_MAX;  // in any unit: only its order counts
  int64_t adapter = 0;
};

struct ScheduledRequest;

//              Start()               Fork()
//   kWaiting ───────────► kPrefilling ──────► kDecoding      and kEnded from everywhere, by EndSequence()
//      ▲ └─────────────────── SwapIn() ──────────►  │
//      └──────────────── Preempt() ◄── (also from kPrefilling)
enum class SequencePhase : uint8_t { kWaiting, kPrefilling, kDecoding, kEnded };

// One sample, from the request to its end.
struct ScheduledSequence {
  ScheduledRequest* request = nullptr;
  int32_t sample = 0;
  SequencePhase phase = SequencePhase::kWaiting;
  SlotIndex slot = -1;
  std::vector<int32_t> drawn;  // what is known of its answer
  int32_t undrawn = 0;         // draws under way
  int64_t computed = 0;        // positions whose keys and values are there when all plans have run
  bool has_computed = false;   // some of them itself, since it started
  std::vector<BlockIndex> table;
  std::vector<BlockIndex> on_host;  // if it waits and was swapped out, its table there
  // The leading `indexed` blocks are places in the tree of prefixes; `scope`: in which all of it was computed, none
  // if not known to be one.
  std::optional<PrefixScope> scope;
  int64_t indexed = 0;
  BlockPool::Node node = 0;
};

struct ScheduledRequest {
  SchedulerRequest request;
  int64_t arrival = 0;
  int64_t passed_over = 0;
  bool overtaken = false;
  std::vector<ScheduledSequence> samples;  // never moves
  int32_t live = 0;
  int32_t draws_under_way = 0;
};

// Place in the order; less is sooner.
struct SequenceOrder {
  int32_t rank = 0;  // 0: first, 1: overtaken often enough, 2: everybody else
  int64_t priority = 0;
  int64_t deadline = 0;
  int64_t arrival = 0;
  int32_t sample = 0;
  friend auto operator<=>(const SequenceOrder&, const SequenceOrder&) = default;
};

SequenceOrder GetOrder(const ScheduledSequence& sequence);
// Tokens of the prompt and of the answer so far.
int64_t KnownTokens(const ScheduledSequence& sequence);
// Those from position `begin` up to `end`, which are known.
std::vector<int32_t> GetTokens(const ScheduledSequence& sequence, int64_t begin, int64_t end);
// How the newest token of the answer ends it, in a context of so many tokens.
std::optional<FinishReason> MakeFinish(const ScheduledSequence& sequence, int64_t max_context);

}  // namespace syncopate::rollouter
