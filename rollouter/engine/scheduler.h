#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/policy_version.h"
#include "base/trajectory.h"
#include "rollouter/engine/block_pool.h"
#include "rollouter/engine/concurrency_limit.h"
#include "rollouter/engine/scheduled_request.h"
#include "rollouter/engine/step_plan.h"

namespace syncopate::rollouter {

// Decides what each step of an engine computes: which sequences run, where their keys and values are, which sequences
// wait and which are preempted. Pure: requests and drawn tokens go in, plans come out; no thread, no clock, no tensors.
// Not thread-safe.
//
// A request is one prompt and n samples of it. Its samples start together. The prompt is computed once, in chunks
// beside the decoding of others; a prefix that is already computed (same version, adapter and tokens) is not computed
// again; of the base (kBaseAdapter) also across versions of one epoch. Then each sample continues alone and shares the
// prompt's blocks until it writes to one.
//
// Blocks are allocated as sequences grow. When they run out, the sequence that is last in order is preempted: it
// releases its blocks and is computed again later (kRecompute), or its blocks are swapped to the host (kSwap, as far as
// host_blocks reach; the others are computed again).
//
// The number of sequences that run at once follows the share of blocks in use (ConcurrencyLimit), so that preemption is
// rare.
//
// The order is: requests with `first`, then higher priority, then earlier deadline, then earlier arrival. No request
// starts before the first in this order can start. A request that max_passed_over younger ones have overtaken goes
// before all that are not `first`, so no request waits forever.
//
// The last lent_blocks blocks can be lent: for a while their memory serves for something else, such as a second set of
// weights. Lend() closes them in four steps: it closes the free ones; it forgets prefixes that are only kept; it copies
// blocks in use to lower ones; it preempts the sequences that are last in order until the others have room there.
// Blocks are allocated from the lowest number, so most lends need only the first step. Requests without room wait
// meanwhile.
//
// Yield() takes all sequences off the device: for a while nothing of the storage is there. The sequences that come first
// in the order are swapped to the host, as far as host_blocks reach; the others are computed again.
//
// A sample of a request with turns is parked when a turn ends. A parked sample has no slot and is no work. Its blocks
// stay until others need them; nobody is preempted before all parked samples have given up their blocks. Extend()
// appends given tokens, and the sample waits for a slot in the same order as all others. The number of a draw is its
// place in the answer, given tokens counted, so the next tokens do not depend on what became of the blocks.
//
// A pass over a few prompt tokens reads all weights, as one over many does. While many sequences decode, prompts therefore
// wait a few plans for each other: as long as the samples that wait for them are few beside those that decode.
//
// The caller may make a plan before it knows the result of the plan before: a sequence that turns out to have ended
// then has one draw too many, which Complete() does not report.
class Scheduler {
 public:
  enum class Preemption : uint8_t { kRecompute, kSwap };

  struct Options {
    int64_t blocks = 0;                 // blocks of the storage on the device
    int64_t host_blocks = 0;            // blocks of the storage for swapping
    int64_t lent_blocks = 0;            // of `blocks`, the last ones, which Lend() closes
    int64_t max_kept_blocks = 1 << 20;  // the most blocks without a user that are kept for their prefix; 0: none
    int64_t max_sequences = 256;        // the number of slots
    int64_t max_prefill_tokens = 4096;  // the largest number in one plan
    int64_t max_context = 0;            // tokens of one sequence, prompt and answer together
    int64_t max_passed_over = 64;
    // Prompts wait for each other at most this many plans (0: never), and only while at least this many sequences decode
    // for each sample that waits.
    int64_t max_gathering_plans = 8;
    int64_t decoding_to_gathering = 64;
    Preemption preemption = Preemption::kRecompute;
    // Limit the running sequences by the share of blocks in use; false: start a request if there is room.
    bool follow_usage = true;
    // INVALID_ARGUMENT (reason BAD_OPTIONS).
    absl::Status Validate() const;
  };

  using Request = SchedulerRequest;

  // One token of one sample that is not to be dropped.
  struct Drawn {
    uint64_t key = 0;
    int32_t sample = 0;
    int64_t draw = 0;                    // the number of the draw in the plan
    std::optional<FinishReason> finish;  // set if the sample ends with this token, or with turns: is parked with it
  };

  // `options` must be valid (Validate()).
  explicit Scheduler(const Options& options);
  virtual ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // INVALID_ARGUMENT (reason BAD_REQUEST) if the request could never run, or has starts that leave no token to draw.
  // Reads `options` only: any thread may call it.
  absl::Status Check(const Request& request) const;

  // Precondition: Check() is OK.
  void Add(Request request);
  // Ends all samples of a request; may be called at any time. Returns the samples that had not ended.
  std::vector<int32_t> Abort(uint64_t key);
  // Ends a sample that has drawn a token or is parked. No effect if it has already ended.
  void End(uint64_t key, int32_t sample);
  // Ends the turn of a sample of a request with turns at the token that Complete() has just returned. No effect if that
  // token has ended the turn.
  void Park(uint64_t key, int32_t sample);
  // A parked sample loses all its tokens, and waits for Extend() again.
  void Rewind(uint64_t key, int32_t sample);
  // Whether a parked sample has room for `tokens` given tokens and one that it draws. 0 is for a sample without tokens
  // only.
  bool MayExtend(uint64_t key, int32_t sample, int64_t tokens) const;
  // Begins the next turn of a parked sample behind `given`. Precondition: MayExtend().
  void Extend(uint64_t key, int32_t sample, absl::Span<const int32_t> given);

  // Declares that later plans run on weights of this version. Plans in progress keep theirs.
  void SetVersion(const PolicyVersion& version);
  const PolicyVersion& version() const { return version_; }
  // Has a request that has not started answered by the adapters of `adapter` (SlotStart), which are those of `version`,
  // whatever version the plans have. No effect if it has ended.
  void Pin(uint64_t key, int64_t adapter, const PolicyVersion& version);
  // Declares that all blocks have lost their contents. Precondition: all requests have ended, and no plan is in
  // progress.
  void ForgetBlocks();

  // Ends the use of all blocks, whose contents are lost after the plan that this returns: it only swaps out, and is to
  // be launched and completed like any other, unless it is empty. Every sequence waits, or is parked, and goes on with
  // the next plan. Precondition: no plan is in progress, and no blocks are lent.
  StepPlan Yield();
  // The next plan closes the last blocks; without anything that runs they are closed at once. Idempotent.
  void Lend();
  // After Lend(), when no step may be made: a plan that closes the last blocks and does nothing else. It is to be
  // launched and completed like any other; empty if they are closed without one, or were before.
  StepPlan PlanLend();
  // True when neither a plan in progress nor a later one uses the lent blocks. False again after Return().
  bool has_lent() const { return lent_ && !UsesLentYet(); }
  // The lent blocks are there again, without contents. May be called at any time.
  void Return();

  // True while a sample that is not parked has not ended.
  bool HasWork() const { return live_samples_ > parked_samples_; }
  // True while a request has not ended.
  bool HasRequests() const { return live_samples_ > 0; }
  // Returns the next step. Empty if nothing can be done before a plan in progress is completed. Precondition: a version
  // is set.
  StepPlan Plan();
  // Takes the tokens drawn by the oldest plan in progress (only plans that were not empty count), by number of the
  // draw. Returns the draws that count.
  std::vector<Drawn> Complete(int64_t plan, absl::Span<const int32_t> tokens);
  int64_t plans_under_way() const { return static_cast<int64_t>(under_way_.size()); }

  int64_t running_sequences() const { return options_.max_sequences - static_cast<int64_t>(free_slots_.size()); }
  int64_t waiting_sequences() const { return live_samples_ - parked_samples_ - running_sequences(); }
  int64_t parked_sequences() const { return parked_samples_; }
  // Sequences without a slot that have blocks.
  int64_t offering_sequences() const { return static_cast<int64_t>(offering_.size()); }
  int64_t free_blocks() const { return pool_.available(); }
  int64_t free_host_blocks() const { return static_cast<int64_t>(free_host_blocks_.size()); }
  // The share in use of the blocks that are not lent.
  double block_usage() const { return 1 - static_cast<double>(pool_.available()) / static_cast<double>(pool_.open()); }
  double host_block_usage() const {
    if (options_.host_blocks == 0) return 0;
    return 1 - static_cast<double>(free_host_blocks_.size()) / static_cast<double>(options_.host_blocks);
  }
  const Options& options() const { return options_; }
  int64_t concurrency_limit() const { return concurrency_.limit(); }

  struct Counters {
    int64_t prefilled_tokens = 0;  // tokens that prefill chunks computed
    int64_t preemptions = 0;       // preempted sequences
    int64_t swaps = 0;             // preemptions that swapped to the host
    int64_t shared_tokens = 0;     // tokens not computed, because their prefix was cached
    int64_t prompt_tokens = 0;     // tokens to compute or share, counted again after a preemption
    int64_t thrown_away = 0;       // draws of sequences that had already ended
    int64_t moved_blocks = 0;      // copied down for Lend()
    int64_t given_up = 0;          // sequences without a slot that others took the blocks of
    int64_t yielded = 0;           // running sequences that Yield() took off the device
    int64_t yielded_swaps = 0;     // of them, swapped to the host
  };
  const Counters& counters() const { return counters_; }

 protected:
  // Rules that tests override to prove that a check detects the fault.
  virtual void AddUser(BlockIndex block) { pool_.AddUser(block); }
  virtual void RemoveUser(BlockIndex block) { pool_.RemoveUser(block); }
  virtual PrefixScope GetScope(int64_t adapter) const { return PrefixScope::Make(version_, adapter); }
  virtual bool HasWaitedEnough(int64_t passed_over) const { return passed_over >= options_.max_passed_over; }
  virtual bool IsShared(BlockIndex block) const { return users(block) > 1; }
  virtual void CloseFreeBlocks(BlockPool& pool, BlockIndex first) { pool.CloseFree(first); }
  virtual void ForgetKeptPrefixes(BlockPool& pool) { pool.ForgetKeptInClosed(); }
  virtual bool UsesLentYet() const { return !under_way_.empty() && under_way_.front().plan <= last_use_; }
  virtual void OpenReturned(BlockPool& pool) { pool.Reopen(); }
  virtual int32_t TokensToMove() const { return kBlockTokens; }
  virtual bool MustPreempt(int64_t wanted, int64_t available) const { return wanted > available; }
  virtual bool MayTakeOffered() const { return !offering_.empty(); }
  virtual bool IsStale(const ScheduledSequence& sequence) const { return sequence.stale > 0; }
  virtual int64_t ComputedAtPark(int64_t computed, int64_t known) const { return std::min(computed, known); }
  virtual bool LosesLentBlocks(const ScheduledSequence& sequence) const;
  virtual bool LosesBlocksAtYield(const ScheduledSequence&) const { return true; }
  virtual void ForgetAllBlocks(BlockPool& pool) { pool.ForgetAll(); }
  int32_t users(BlockIndex block) const { return pool_.users(block); }

 private:
  using Sequence = ScheduledSequence;
  using RequestState = ScheduledRequest;
  using Order = SequenceOrder;
  using Phase = SequencePhase;

  // Samples that start together: all samples of a request without tokens of their own, whose first member computes the
  // prompt, or one sample that has such tokens.
  using Unit = std::vector<Sequence*>;

  PrefixScope ScopeOf(const Sequence& sequence) const;
  static int64_t Blocks(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }
  absl::Status CheckStarts(const Request& request) const;
  // The largest number of positions that need keys and values: of a request's samples, and of a sequence in its current
  // turn.
  int64_t MaxPositions(const Request& request) const;
  int64_t MaxPositions(const Sequence& sequence) const;
  bool MayDraw(const Sequence& sequence) const;

  void ParkSequence(Sequence& sequence);
  // The blocks of a sequence without a slot: offered to others, kept for itself, or given up to others.
  void OfferBlocks(Sequence& sequence);
  void KeepBlocks(Sequence& sequence);
  void GiveUpBlocks(Sequence& sequence);
  // The sequence that gives up its blocks first. Precondition: there is one.
  Sequence& LastOffering() const;

  // Steps of Plan(). MakeRoom() returns true if it preempted a sequence.
  bool MakeRoom(StepPlan& plan);
  // Closes the lent blocks; returns true if it preempted a sequence.
  bool CloseLent(StepPlan& plan);
  // The blocks to copy down, after preemptions that make room for them.
  std::vector<BlockIndex> FindBlocksToMove(StepPlan& plan, bool* preempted);
  bool MayRun(const Unit& unit);
  int64_t BlocksForDecode();
  Sequence* LastInOrder() const;
  void Preempt(Sequence& victim, StepPlan& plan);
  // Copies the blocks of a decoding sequence to the host, if sequences are swapped and there is room for all of them.
  void SwapOut(Sequence& sequence, StepPlan& plan);
  // Returns a started unit to `waiting_`, without slots and blocks.
  void PutBack(const Unit& unit);
  void Admit(StepPlan& plan);
  // Finds the prefix of a unit that may start now: there is room for it, if need be after others gave up blocks.
  std::optional<BlockPool::Prefix> FindRoom(const Unit& unit);
  BlockPool::Prefix FindPrefix(const Sequence& leader) const;
  // The block that a sequence with blocks writes its given tokens to; -1 if that is a new one.
  BlockIndex FirstWritten(const Sequence& sequence) const;
  int64_t BlocksToStart(const Unit& unit, const BlockPool::Prefix& prefix) const;
  void TakeSlot(Sequence& sequence, StepPlan& plan);
  void Start(const Unit& unit, const BlockPool::Prefix& prefix, StepPlan& plan);
  // Starts a sequence whose blocks are still there.
  void StartAgain(Sequence& sequence, StepPlan& plan);
  void SwapIn(Sequence& sequence, StepPlan& plan);
  void CountOvertaken(int64_t arrival);
  void AddRows(StepPlan& plan, std::vector<Sequence*>& draws);
  void MakeWritable(Sequence& sequence, StepPlan& plan);
  void AddChunks(StepPlan& plan, std::vector<Sequence*>& draws);
  // Whether the chunks are left to a later plan, which will have more of them.
  bool GathersChunks(const StepPlan& plan);
  void Fork(const Unit& unit, PrefillChunk& chunk, StepPlan& plan);
  void IndexBlocks(Sequence& sequence);

  void EndSequence(Sequence& sequence);
  void LeaveUnit(Sequence& sequence);
  void ReleaseBlocks(Sequence& sequence);
  void ReleaseHostBlocks(Sequence& sequence);
  void ReleaseSlot(Sequence& sequence);
  // Call after EndSequence(): removes ended sequences, and requests without live samples and draws in progress.
  void ForgetEnded();

  const Options options_;
  BlockPool pool_;
  ConcurrencyLimit concurrency_;
  std::vector<BlockIndex> free_host_blocks_;
  std::vector<SlotIndex> free_slots_;
  PolicyVersion version_;
  std::unordered_map<uint64_t, std::unique_ptr<RequestState>> requests_;  // never iterated over
  std::map<Order, Unit> waiting_;
  std::deque<Unit> prefilling_;      // in order of their starts
  int64_t gathering_plans_ = 0;      // since the last plan with chunks, those that have left chunks to a later one
  std::vector<Sequence*> decoding_;  // in order of their starts
  bool decoding_has_ended_ = false;  // some of decoding_ have ended or are parked: true until ForgetEnded()
  std::vector<Sequence*> offering_;  // sequences without a slot that have blocks: parked, or extended and waiting
  struct UnderWay {
    int64_t plan = 0;
    std::vector<Sequence*> draws;
  };
  std::deque<UnderWay> under_way_;
  std::vector<RequestState*> ended_;  // requests that ForgetEnded() will remove
  std::vector<int32_t> writers_;      // by block: scratch space of BlocksForDecode(), 0 outside it
  bool must_lend_ = false;            // the next plan closes the lent blocks
  bool lent_ = false;                 // it has
  int64_t last_use_ = 0;              // the last plan that may use them
  std::map<BlockIndex, BlockIndex>
      moved_;  // while the plan that closes them is made: from the new block to the old one
  int64_t live_samples_ = 0;
  int64_t parked_samples_ = 0;
  int64_t arrivals_ = 0;
  int64_t last_plan_ = 0;
  Counters counters_;
};

}  // namespace syncopate::rollouter
