#pragma once

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

// Decides what each step of an engine computes: which sequences run, where their keys and values lie, who waits and who
// makes room. Pure: requests and drawn tokens go in, plans come out; no thread, no clock, no tensors.
//
// A request is one prompt and n samples of it. Its samples start together; the prompt is computed once, in chunks
// beside the decoding of others, and what is already there of it (same version, adapter and tokens) not at all. Then
// each sample goes its own way and shares the prompt's blocks until it writes to one.
//
// Blocks are taken as sequences grow. When they run out, the sequence that is last in order makes room: it gives its
// blocks away and is computed again later (kRecompute), or its blocks go to the host (kSwap, as long as there is room).
//
// How many run at once follows the share of blocks in use (ConcurrencyLimit), so that this is rare.
//
// Order: requests that go `first`, then by priority (higher first), deadline (sooner first) and arrival. Nobody starts
// before the first in this order can. A request that max_passed_over younger ones have overtaken goes before all that
// are not `first`; so nobody waits for ever.
//
// The caller may make a plan before the result of the one before it is known: a sequence that turns out to have ended
// has one draw too many, which Complete() does not report.
class Scheduler {
 public:
  enum class Preemption : uint8_t { kRecompute, kSwap };

  struct Options {
    int64_t blocks = 0;                 // of the storage
    int64_t host_blocks = 0;            // of the storage to swap to
    int64_t max_kept_blocks = 1 << 20;  // blocks without a user that are kept for the prefix they hold; 0: none
    int64_t max_sequences = 256;        // slots
    int64_t max_prefill_tokens = 4096;  // of one plan
    int64_t max_context = 0;            // tokens of one sequence, prompt and answer
    int64_t max_passed_over = 64;
    Preemption preemption = Preemption::kRecompute;
    bool follow_usage = true;  // limit how many run by the share of blocks in use; false: start whatever has room
    // INVALID_ARGUMENT reason BAD_OPTIONS.
    absl::Status Validate() const;
  };

  using Request = SchedulerRequest;

  // One token of one sample, that counts.
  struct Drawn {
    uint64_t key = 0;
    int32_t sample = 0;
    int64_t draw = 0;                    // its number in the plan
    std::optional<FinishReason> finish;  // the sample ends with it
  };

  // `options` have been validated.
  explicit Scheduler(const Options& options);
  virtual ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // INVALID_ARGUMENT reason BAD_REQUEST if the request could never run. Reads options only: any thread may call it.
  absl::Status Check(const Request& request) const;

  // Precondition: Check() is OK.
  void Add(Request request);
  // Ends all samples of a request, at any moment. Returns those that had not ended.
  std::vector<int32_t> Abort(uint64_t key);
  // Ends a sample that has drawn a token. Nothing happens if it has ended.
  void End(uint64_t key, int32_t sample);

  // Plans from now on run on these weights. Precondition: nothing is under way.
  void SetVersion(const PolicyVersion& version);
  const PolicyVersion& version() const { return version_; }
  // The blocks have lost what they held. Precondition: no request has not ended, and nothing is under way.
  void ForgetBlocks();

  // There is a request that has not ended.
  bool HasWork() const { return live_samples_ > 0; }
  // The next step. Empty if nothing can be done before a plan that is under way is completed. Precondition: a version.
  StepPlan Plan();
  // The draws of the oldest plan under way that had any rows, swaps or copies, by number. Returns those that count.
  std::vector<Drawn> Complete(int64_t plan, absl::Span<const int32_t> tokens);
  int64_t plans_under_way() const { return static_cast<int64_t>(under_way_.size()); }

  int64_t running_sequences() const { return options_.max_sequences - static_cast<int64_t>(free_slots_.size()); }
  int64_t waiting_sequences() const { return live_samples_ - running_sequences(); }
  int64_t free_blocks() const { return pool_.available(); }
  int64_t free_host_blocks() const { return static_cast<int64_t>(free_host_blocks_.size()); }
  double block_usage() const {
    return 1 - static_cast<double>(pool_.available()) / static_cast<double>(pool_.blocks());
  }
  const Options& options() const { return options_; }
  int64_t concurrency_limit() const { return concurrency_.limit(); }

  struct Counters {
    int64_t prefilled_tokens = 0;  // that chunks computed
    int64_t preemptions = 0;       // sequences that made room
    int64_t swaps = 0;             // of them, to the host
    int64_t shared_tokens = 0;     // of prompts, that were not computed because they were there
    int64_t prompt_tokens = 0;     // that were to be computed or shared, again after a preemption
    int64_t thrown_away = 0;       // draws of sequences that had ended
  };
  const Counters& counters() const { return counters_; }

 protected:
  // What tests break to see that they notice.
  virtual void AddUser(BlockIndex block) { pool_.AddUser(block); }
  virtual void RemoveUser(BlockIndex block) { pool_.RemoveUser(block); }
  virtual PrefixScope GetScope(int64_t adapter) const { return {version_, adapter}; }
  virtual bool HasWaitedEnough(int64_t passed_over) const { return passed_over >= options_.max_passed_over; }
  virtual bool IsShared(BlockIndex block) const { return users(block) > 1; }
  int32_t users(BlockIndex block) const { return pool_.users(block); }

 private:
  using Sequence = ScheduledSequence;
  using RequestState = ScheduledRequest;
  using Order = SequenceOrder;
  using Phase = SequencePhase;

  // Samples that start together: all of a request, whose first member computes the prompt, or one that was preempted.
  using Unit = std::vector<Sequence*>;

  static int64_t Blocks(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }
  // Positions that it can ever have keys and values for.
  int64_t MaxPositions(const Request& request) const;
  bool MayDraw(const Sequence& sequence) const;

  // Plan().
  // True if somebody made room.
  bool MakeRoom(StepPlan& plan);
  bool MayRun(const Unit& unit);
  int64_t BlocksForDecode();
  Sequence* LastInOrder() const;
  void Preempt(Sequence& victim, StepPlan& plan);
  // What has started waits again, without slots and blocks.
  void PutBack(const Unit& unit);
  void Admit(StepPlan& plan);
  int64_t BlocksToStart(const Unit& unit, const BlockPool::Prefix& prefix) const;
  void TakeSlot(Sequence& sequence, StepPlan& plan);
  void Start(const Unit& unit, const BlockPool::Prefix& prefix, StepPlan& plan);
  void SwapIn(Sequence& sequence, StepPlan& plan);
  void CountOvertaken(int64_t arrival);
  void AddRows(StepPlan& plan, std::vector<Sequence*>& draws);
  void MakeWritable(Sequence& sequence, StepPlan& plan);
  void AddChunks(StepPlan& plan, std::vector<Sequence*>& draws);
  void Fork(const Unit& unit, PrefillChunk& chunk, StepPlan& plan);
  void IndexBlocks(Sequence& sequence);

  void EndSequence(Sequence& sequence);
  void LeaveUnit(Sequence& sequence);
  void ReleaseBlocks(Sequence& sequence);
  void ReleaseSlot(Sequence& sequence);
  // After EndSequence(): forgets those that have ended, and requests of which nothing is left or under way.
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
  std::vector<Sequence*> decoding_;  // in order of their starts
  bool decoding_has_ended_ = false;  // some of them have ended: until ForgetEnded()
  struct UnderWay {
    int64_t plan = 0;
    std::vector<Sequence*> draws;
  };
  std::deque<UnderWay> under_way_;
  std::vector<RequestState*> ended_;  // to be looked at by ForgetEnded()
  std::vector<int32_t> writers_;      // of each block: scratch of BlocksForDecode(), else 0
  int64_t live_samples_ = 0;
  int64_t arrivals_ = 0;
  int64_t last_plan_ = 0;
  Counters counters_;
};

}  // namespace syncopate::rollouter
