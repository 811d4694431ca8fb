// The scheduler in a world with too little memory for its requests; see scheduler_world.h.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/rollouter/engine/scheduler_world.h"

namespace syncopate::rollouter {
namespace {

struct Totals {
  int64_t failed = 0;
  std::map<std::string, int64_t> kinds;  // kinds of errors, without the numbers in their texts
  std::string first_error;
  SchedulerOutcome sums;
};

Totals SimulateMany(int runs, const MakeScheduler& make_scheduler, bool lends = true, bool turns = false,
                    bool yields = false) {
  Totals totals;
  for (int seed = 1; seed <= runs; ++seed) {
    const SchedulerOutcome outcome =
        SimulateScheduler(static_cast<uint64_t>(seed), make_scheduler, lends, turns, yields);
    if (!outcome.errors.empty()) {
      ++totals.failed;
      if (totals.first_error.empty()) totals.first_error = "seed " + std::to_string(seed) + ": " + outcome.errors[0];
      std::string kind;
      for (char c : outcome.errors[0]) {
        if (c < '0' || c > '9') kind += c;
      }
      ++totals.kinds[kind];
    }
    totals.sums.counters.preemptions += outcome.counters.preemptions;
    totals.sums.counters.swaps += outcome.counters.swaps;
    totals.sums.counters.shared_tokens += outcome.counters.shared_tokens;
    totals.sums.counters.thrown_away += outcome.counters.thrown_away;
    totals.sums.finished += outcome.finished;
    totals.sums.aborted += outcome.aborted;
    totals.sums.ended_by_sink += outcome.ended_by_sink;
    totals.sums.installs += outcome.installs;
    totals.sums.overtaken += outcome.overtaken;
    totals.sums.counters.moved_blocks += outcome.counters.moved_blocks;
    totals.sums.lends += outcome.lends;
    totals.sums.lends_without_a_step += outcome.lends_without_a_step;
    totals.sums.returned_early += outcome.returned_early;
    totals.sums.moving_plans += outcome.moving_plans;
    totals.sums.counters.given_up += outcome.counters.given_up;
    totals.sums.parks += outcome.parks;
    totals.sums.extensions += outcome.extensions;
    totals.sums.ended_parked += outcome.ended_parked;
    totals.sums.aborted_parked += outcome.aborted_parked;
    totals.sums.rewinds += outcome.rewinds;
    totals.sums.yields += outcome.yields;
    totals.sums.counters.yielded += outcome.counters.yielded;
    totals.sums.counters.yielded_swaps += outcome.counters.yielded_swaps;
  }
  return totals;
}

int64_t Count(const Totals& totals, const std::string& text) {
  int64_t count = 0;
  for (const auto& [kind, times] : totals.kinds) count += kind.find(text) == std::string::npos ? 0 : times;
  return count;
}

constexpr int kOneRunIn = SYNCOPATE_ONE_RUN_IN;

TEST(SchedulerSimulationTest, KeepsItsPromisesThroughPreemptionsAbortsAndInstalls) {
  const Totals totals = SimulateMany(3000 / kOneRunIn, MakeSchedulerWith<>());
  EXPECT_EQ(totals.failed, 0) << totals.first_error;
  EXPECT_GT(totals.sums.counters.preemptions, 5000 / kOneRunIn);
  EXPECT_GT(totals.sums.counters.swaps, 1000 / kOneRunIn);
  EXPECT_GT(totals.sums.counters.shared_tokens, 100000 / kOneRunIn);
  EXPECT_GT(totals.sums.counters.thrown_away, 10000 / kOneRunIn);
  EXPECT_GT(totals.sums.finished, 100000 / kOneRunIn);
  EXPECT_GT(totals.sums.aborted, 1000 / kOneRunIn);
  EXPECT_GT(totals.sums.ended_by_sink, 1000 / kOneRunIn);
  EXPECT_GT(totals.sums.installs, 10000 / kOneRunIn);
  EXPECT_GT(totals.sums.overtaken, 10000 / kOneRunIn);
  EXPECT_GT(totals.sums.lends, 5000 / kOneRunIn);
  EXPECT_GT(totals.sums.lends_without_a_step, 1000 / kOneRunIn);
  EXPECT_GT(totals.sums.returned_early, 1000 / kOneRunIn);
  EXPECT_GT(totals.sums.moving_plans, 1000 / kOneRunIn);
  EXPECT_GT(totals.sums.counters.moved_blocks, 2000 / kOneRunIn);
}

// Four schedulers, each with a fault in one operation on lent blocks.
struct LeavesAFreeBlock : Scheduler {
  using Scheduler::Scheduler;
  void CloseFreeBlocks(BlockPool& pool, BlockIndex first) override {
    pool.CloseFree(std::min(first + 1, static_cast<BlockIndex>(options().blocks)));
  }
};
struct LeavesKeptPrefixes : Scheduler {
  using Scheduler::Scheduler;
  void ForgetKeptPrefixes(BlockPool&) override {}
};
struct MovesHalfABlock : Scheduler {
  using Scheduler::Scheduler;
  int32_t TokensToMove() const override { return kBlockTokens / 2; }
};
struct PreemptsNobody : Scheduler {
  using Scheduler::Scheduler;
  bool MustPreempt(int64_t, int64_t) const override { return false; }
};

TEST(SchedulerSimulationTest, NoticesALentBlockThatIsHandedOut) {
  const Totals totals = SimulateMany(400 / kOneRunIn, MakeSchedulerWith<LeavesAFreeBlock>());
  EXPECT_GT(Count(totals, "touches a lent block") + Count(totals, "without a block"), 30 / kOneRunIn)
      << totals.first_error;
}

TEST(SchedulerSimulationTest, NoticesAPrefixThatIsFoundInALentBlock) {
  const Totals totals = SimulateMany(400 / kOneRunIn, MakeSchedulerWith<LeavesKeptPrefixes>());
  EXPECT_GT(totals.failed, 10 / kOneRunIn) << totals.first_error;  // most often: a prefix of another version
}

TEST(SchedulerSimulationTest, NoticesABlockThatIsCopiedDownInPart) {
  const Totals totals = SimulateMany(400 / kOneRunIn, MakeSchedulerWith<MovesHalfABlock>());
  EXPECT_GT(Count(totals, "holds something else"), 30 / kOneRunIn) << totals.first_error;
}

TEST(SchedulerSimulationTest, NoticesASequenceThatMakesNoRoom) {
  const Totals totals = SimulateMany(400 / kOneRunIn, MakeSchedulerWith<PreemptsNobody>());
  EXPECT_GT(totals.failed, 30 / kOneRunIn) << totals.first_error;
}

// Lends the blocks while a plan that uses them is in progress.
struct LendsTooEarly : Scheduler {
  using Scheduler::Scheduler;
  bool UsesLentYet() const override { return false; }
};

TEST(SchedulerSimulationTest, NoticesALentBlockThatAPlanInProgressUses) {
  const Totals totals = SimulateMany(400 / kOneRunIn, MakeSchedulerWith<LendsTooEarly>());
  EXPECT_GT(Count(totals, "a plan in progress uses a lent block"), 15 / kOneRunIn) << totals.first_error;
}

// Keeps one of the blocks when they are returned.
struct KeepsAReturnedBlock : Scheduler {
  using Scheduler::Scheduler;
  void OpenReturned(BlockPool& pool) override {
    pool.Reopen();
    if (pool.available() > 0) pool.Allocate();
  }
};

TEST(SchedulerSimulationTest, NoticesABlockThatIsNotGivenBack) {
  const Totals totals = SimulateMany(400 / kOneRunIn, MakeSchedulerWith<KeepsAReturnedBlock>());
  EXPECT_GT(totals.failed, 60 / kOneRunIn) << totals.first_error;
}

// Now and then forgets to free a block that its last user leaves.
struct LeaksBlocks : Scheduler {
  using Scheduler::Scheduler;
  void RemoveUser(BlockIndex block) override {
    if (users(block) > 1 || ++removed_ % 100 != 0) Scheduler::RemoveUser(block);
  }
  int64_t removed_ = 0;
};

TEST(SchedulerSimulationTest, NoticesALeakedBlock) {
  const Totals totals = SimulateMany(200 / kOneRunIn, MakeSchedulerWith<LeaksBlocks>(), /*lends=*/false);
  EXPECT_GT(totals.failed, 150 / kOneRunIn);
  EXPECT_GT(Count(totals, "a leaked block"), 50 / kOneRunIn);
}

// Frees a shared block when the first of its users leaves. No block is indexed, so no block is kept.
struct FreesSharedBlocks : Scheduler {
  using Scheduler::Scheduler;
  void RemoveUser(BlockIndex block) override {
    while (users(block) > 0) Scheduler::RemoveUser(block);
  }
  PrefixScope GetScope(int64_t) const override { return {version(), ++scopes_}; }
  mutable int64_t scopes_ = 0;
};

TEST(SchedulerSimulationTest, NoticesAFreedBlockInUse) {
  const Totals totals = SimulateMany(200 / kOneRunIn, MakeSchedulerWith<FreesSharedBlocks>(), /*lends=*/false);
  EXPECT_GT(Count(totals, "holds something else"), 50 / kOneRunIn);
}

// Writes to a block that other sequences use.
struct WritesToSharedBlocks : Scheduler {
  using Scheduler::Scheduler;
  bool IsShared(BlockIndex) const override { return false; }
};

TEST(SchedulerSimulationTest, NoticesAWriteToASharedBlock) {
  const Totals totals = SimulateMany(200 / kOneRunIn, MakeSchedulerWith<WritesToSharedBlocks>(), /*lends=*/false);
  EXPECT_GT(Count(totals, "holds something else"), 50 / kOneRunIn);
}

// Forgets which version made a prefix.
struct SharesAcrossVersions : Scheduler {
  using Scheduler::Scheduler;
  PrefixScope GetScope(int64_t adapter) const override { return {{1, 0}, adapter}; }
};

TEST(SchedulerSimulationTest, NoticesAPrefixSharedAcrossVersions) {
  const Totals totals = SimulateMany(200 / kOneRunIn, MakeSchedulerWith<SharesAcrossVersions>(), /*lends=*/false);
  EXPECT_GT(Count(totals, "a prefix of another version"), 30 / kOneRunIn);
}

// Lets priorities delay a request for ever.
struct Starves : Scheduler {
  using Scheduler::Scheduler;
  bool HasWaitedEnough(int64_t) const override { return false; }
};

TEST(SchedulerSimulationTest, NoticesAStarvedRequest) {
  const Totals totals = SimulateMany(200 / kOneRunIn, MakeSchedulerWith<Starves>(), /*lends=*/false);
  EXPECT_GT(Count(totals, "starves"), 30 / kOneRunIn);
}

TEST(SchedulerSimulationTest, KeepsItsPromisesToSamplesWithTurns) {
  const Totals totals = SimulateMany(3000 / kOneRunIn, MakeSchedulerWith<>(), /*lends=*/true, /*turns=*/true);
  EXPECT_EQ(totals.failed, 0) << totals.first_error;
  EXPECT_GT(totals.sums.counters.preemptions, 3000 / kOneRunIn);
  EXPECT_GT(totals.sums.counters.swaps, 500 / kOneRunIn);
  EXPECT_GT(totals.sums.counters.given_up, 10000 / kOneRunIn);
  EXPECT_GT(totals.sums.counters.moved_blocks, 2000 / kOneRunIn);
  EXPECT_GT(totals.sums.parks, 100000 / kOneRunIn);
  EXPECT_GT(totals.sums.extensions, 50000 / kOneRunIn);
  EXPECT_GT(totals.sums.ended_parked, 10000 / kOneRunIn);
  EXPECT_GT(totals.sums.aborted_parked, 1000 / kOneRunIn);
  EXPECT_GT(totals.sums.rewinds, 2000 / kOneRunIn);
  EXPECT_GT(totals.sums.installs, 10000 / kOneRunIn);
}

// In this world a sample continues with a copy of a block, and the parked sibling that has the block is preempted then.
TEST(SchedulerSimulationTest, NobodyGetsABlockInThePlanThatCopiesIt) {
  const SchedulerOutcome outcome = SimulateScheduler(10745, MakeSchedulerWith<>(), /*lends=*/true, /*turns=*/true);
  EXPECT_TRUE(outcome.errors.empty()) << outcome.errors[0];
}

// Counts a draw beyond the end of a turn as the first draw of the next turn.
struct CountsStaleDraws : Scheduler {
  using Scheduler::Scheduler;
  bool IsStale(const ScheduledSequence& sequence) const override {
    return sequence.stale > 0 && sequence.phase == SequencePhase::kParked;
  }
};
// Believes that the positions of discarded tokens are computed.
struct KeepsStalePositions : Scheduler {
  using Scheduler::Scheduler;
  int64_t ComputedAtPark(int64_t computed, int64_t) const override { return computed; }
};
// Preempts a running sample although a parked sample has blocks.
struct SparesTheParked : Scheduler {
  using Scheduler::Scheduler;
  bool MayTakeOffered() const override { return false; }
};
// Copies the blocks of parked samples to host memory in a plan that is never run.
struct CopiesWithoutAPlan : Scheduler {
  using Scheduler::Scheduler;
  bool LosesLentBlocks(const ScheduledSequence&) const override { return false; }
};

TEST(SchedulerSimulationTest, NoticesADrawThatCountsInTheWrongTurn) {
  const Totals totals =
      SimulateMany(200 / kOneRunIn, MakeSchedulerWith<CountsStaleDraws>(), /*lends=*/false, /*turns=*/true);
  EXPECT_GT(Count(totals, "an undisturbed run"), 50 / kOneRunIn) << totals.first_error;
}

TEST(SchedulerSimulationTest, NoticesPositionsThatNoTokenOfTheAnswerHas) {
  const Totals totals =
      SimulateMany(400 / kOneRunIn, MakeSchedulerWith<KeepsStalePositions>(), /*lends=*/false, /*turns=*/true);
  EXPECT_GT(totals.failed, 30 / kOneRunIn) << totals.first_error;
}

TEST(SchedulerSimulationTest, NoticesAPreemptionInPlaceOfAParkedSample) {
  const Totals totals =
      SimulateMany(200 / kOneRunIn, MakeSchedulerWith<SparesTheParked>(), /*lends=*/false, /*turns=*/true);
  EXPECT_GT(Count(totals, "blocks to give up"), 50 / kOneRunIn) << totals.first_error;
}

TEST(SchedulerSimulationTest, NoticesBlocksOfParkedSamplesThatAreCopiedByNoPlan) {
  const Totals totals =
      SimulateMany(400 / kOneRunIn, MakeSchedulerWith<CopiesWithoutAPlan>(), /*lends=*/true, /*turns=*/true);
  EXPECT_GT(totals.failed, 30 / kOneRunIn) << totals.first_error;
}

TEST(SchedulerSimulationTest, NoticesAGivenTokenInASharedBlock) {
  const Totals totals =
      SimulateMany(200 / kOneRunIn, MakeSchedulerWith<WritesToSharedBlocks>(), /*lends=*/false, /*turns=*/true);
  EXPECT_GT(Count(totals, "holds something else"), 50 / kOneRunIn) << totals.first_error;
}

TEST(SchedulerSimulationTest, KeepsItsPromisesWhenTheStorageIsLostNowAndThen) {
  const Totals totals =
      SimulateMany(3000 / kOneRunIn, MakeSchedulerWith<>(), /*lends=*/true, /*turns=*/true, /*yields=*/true);
  EXPECT_EQ(totals.failed, 0) << totals.first_error;
  EXPECT_GT(totals.sums.yields, 5000 / kOneRunIn);
  EXPECT_GT(totals.sums.counters.yielded, 5000 / kOneRunIn);
  EXPECT_GT(totals.sums.counters.yielded_swaps, 500 / kOneRunIn);
  EXPECT_GT(totals.sums.counters.yielded, totals.sums.counters.yielded_swaps);
  EXPECT_GT(totals.sums.finished, 10000 / kOneRunIn);
}

// Finds prefixes in storage that was lost.
struct RemembersLostPrefixes : Scheduler {
  using Scheduler::Scheduler;
  void ForgetAllBlocks(BlockPool&) override {}
};
// Lets parked samples keep blocks whose contents are lost.
struct KeepsLostBlocks : Scheduler {
  using Scheduler::Scheduler;
  bool LosesBlocksAtYield(const ScheduledSequence&) const override { return false; }
  void ForgetAllBlocks(BlockPool& pool) override {
    if (pool.available() == pool.blocks()) pool.ForgetAll();
  }
};

TEST(SchedulerSimulationTest, NoticesAPrefixInStorageThatWasLost) {
  const Totals totals = SimulateMany(400, MakeSchedulerWith<RemembersLostPrefixes>(), /*lends=*/false,
                                     /*turns=*/false, /*yields=*/true);
  EXPECT_GT(totals.failed, 30) << totals.first_error;
}

TEST(SchedulerSimulationTest, NoticesAParkedSampleThatKeepsWhatWasLost) {
  const Totals totals =
      SimulateMany(400, MakeSchedulerWith<KeepsLostBlocks>(), /*lends=*/false, /*turns=*/true, /*yields=*/true);
  EXPECT_GT(Count(totals, "a sequence that stays"), 30) << totals.first_error;
}

TEST(SchedulerSimulationTest, EqualEventsGiveEqualPlans) {
  for (uint64_t seed : {3, 4, 5}) {
    const bool turns = seed > 3;
    const SchedulerOutcome a = SimulateScheduler(seed, MakeSchedulerWith<>(), /*lends=*/true, turns);
    const SchedulerOutcome b = SimulateScheduler(seed, MakeSchedulerWith<>(), /*lends=*/true, turns);
    EXPECT_EQ(a.extensions, b.extensions);
    EXPECT_EQ(a.plans, b.plans);
    EXPECT_EQ(a.counters.preemptions, b.counters.preemptions);
    EXPECT_EQ(a.counters.shared_tokens, b.counters.shared_tokens);
    EXPECT_EQ(a.finished, b.finished);
  }
}

}  // namespace
}  // namespace syncopate::rollouter
