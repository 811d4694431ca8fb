#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/trajectory.h"
#include "rollouter/engine/block_pool.h"
#include "rollouter/engine/step_plan.h"

// The scheduler's state of a request and its samples, and functions of that state alone. scheduler.h says how the
// scheduler uses it.
namespace syncopate::rollouter {

// A request to the scheduler: one prompt, and one sample of it for each seed.
struct SchedulerRequest {
  uint64_t key = 0;  // the caller's name for the request, unique among those it has added
  std::shared_ptr<const std::vector<int32_t>> prompt;
  std::shared_ptr<const SamplingParams> sampling;
  std::vector<uint64_t> seeds;                    // one per sample
  std::vector<std::vector<int32_t>> starts = {};  // empty, or one per sample: the tokens that its answer begins with
  bool first = false;
  int32_t priority = 0;
  int64_t deadline = INT64_MAX;  // in any unit: only the order counts
  int64_t adapter = 0;           // see kBaseAdapter
  PolicyVersion pinned = {};  // the version of its adapter set, once Scheduler::Pin() has named one; none: not pinned
  // Above 0: the samples have turns. The end of a turn parks a sample, `sampling->max_new_tokens` is the limit of one
  // turn, and this the limit of a sample's answer, given tokens counted.
  int64_t max_total_tokens = 0;
  bool starts_parked = false;  // with turns: each sample waits for Extend(), also for its first turn

  bool has_turns() const { return max_total_tokens > 0; }
};

struct ScheduledRequest;

//            Start(), StartAgain()      Fork()
//   kWaiting ──────────────────► kPrefilling ──────► kDecoding      and kEnded from everywhere, by EndSequence()
//      ▲ └──────────────────────── SwapIn() ────────────►  │
//      ├────────────────── Preempt() ◄── (also from kPrefilling)
//      └── Extend() ── kParked ◄── ParkSequence() (also from kWaiting, if preempted meanwhile)
enum class SequencePhase : uint8_t { kWaiting, kPrefilling, kDecoding, kParked, kEnded };

// One sample, from the request to its end.
struct ScheduledSequence {
  ScheduledRequest* request = nullptr;
  int32_t sample = 0;
  SequencePhase phase = SequencePhase::kWaiting;
  SlotIndex slot = -1;
  std::vector<int32_t> drawn;  // the known tokens of its answer, given ones too
  int64_t turn_begin = 0;      // the first `turn_begin` tokens of the answer are of earlier turns or given
  int32_t undrawn = 0;         // draws in progress
  int32_t stale = 0;           // draws in progress beyond the end of a turn: the oldest of `undrawn`
  int64_t computed = 0;        // positions whose keys and values exist when all plans have run
  bool has_computed = false;   // it has computed positions itself since it started
  std::vector<BlockIndex> table;
  bool offers = false;              // it has no slot, and its blocks go when others need them
  std::vector<BlockIndex> on_host;  // its table on the host, if it waits and was swapped out
  // The first `indexed` blocks are nodes in the tree of prefixes. `scope` is the scope in which all positions were
  // computed; none if not known to be one scope.
  std::optional<PrefixScope> scope;
  int64_t indexed = 0;
  BlockPool::Node node = 0;
};

struct ScheduledRequest {
  SchedulerRequest request;
  int64_t arrival = 0;
  int64_t passed_over = 0;
  bool overtaken = false;
  std::vector<ScheduledSequence> samples;  // never resized, so pointers to samples stay valid
  int32_t live = 0;
  int32_t draws_under_way = 0;
};

// The position in the order of starting; a smaller value starts sooner.
struct SequenceOrder {
  int32_t rank = 0;  // 0: first, 1: overtaken often enough, 2: all others
  int64_t priority = 0;
  int64_t deadline = 0;
  int64_t arrival = 0;
  int32_t sample = 0;
  friend auto operator<=>(const SequenceOrder&, const SequenceOrder&) = default;
};

SequenceOrder GetOrder(const ScheduledSequence& sequence);
// The number of tokens of the prompt and of the answer so far.
int64_t KnownTokens(const ScheduledSequence& sequence);
// The known tokens from position `begin` up to `end`.
std::vector<int32_t> GetTokens(const ScheduledSequence& sequence, int64_t begin, int64_t end);
// The most tokens that the answer can have at the end of the current turn, for a context of `max_context` tokens.
int64_t MaxAnswerTokens(const ScheduledSequence& sequence, int64_t max_context);
// Whether and how the newest token of the answer ends it, or its turn, for a context of `max_context` tokens.
std::optional<FinishReason> MakeFinish(const ScheduledSequence& sequence, int64_t max_context);

}  // namespace syncopate::rollouter
