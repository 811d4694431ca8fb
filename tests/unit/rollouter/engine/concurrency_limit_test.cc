#include "rollouter/engine/concurrency_limit.h"

#include <gtest/gtest.h>

#include <random>

#include "rollouter/engine/scheduler.h"

namespace syncopate::rollouter {
namespace {

TEST(ConcurrencyLimitTest, IsNoneWhileMemoryIsAmple) {
  ConcurrencyLimit limit(64);
  for (int running = 0; running < 64; ++running) {
    limit.Follow(/*usage=*/running / 64.0 * 0.8, running);
    EXPECT_TRUE(limit.Admits(running, 1));
  }
  EXPECT_EQ(limit.limit(), 64);
  EXPECT_FALSE(limit.Admits(64, 1));
}

TEST(ConcurrencyLimitTest, AboveTheUpperShareItFallsWithThoseThatRunAndHoldsBetweenTheTwo) {
  ConcurrencyLimit limit(64);
  limit.Follow(0.81, 30);
  EXPECT_FALSE(limit.Admits(30, 1));
  limit.Follow(0.85, 27);  // three sequences have ended
  EXPECT_EQ(limit.limit(), 27);
  limit.Follow(0.79, 24);
  EXPECT_EQ(limit.limit(), 27);
  EXPECT_TRUE(limit.Admits(24, 3)) << "each sequence that ends makes room for another";
  EXPECT_FALSE(limit.Admits(27, 1));
}

TEST(ConcurrencyLimitTest, BelowTheLowerShareItGrowsByOneAPlanIfItDelayedASequence) {
  ConcurrencyLimit limit(64);
  limit.NotePreemption(10);
  limit.Follow(0.5, 10);
  EXPECT_EQ(limit.limit(), 10) << "no sequence waits";
  EXPECT_FALSE(limit.Admits(10, 2));
  limit.Follow(0.5, 10);
  EXPECT_FALSE(limit.Admits(10, 2));
  limit.Follow(0.5, 10);
  EXPECT_TRUE(limit.Admits(10, 2));
  EXPECT_EQ(limit.limit(), 12);
}

TEST(ConcurrencyLimitTest, ARequestThatIsAloneMayStartWithAnyNumberOfSamples) {
  ConcurrencyLimit limit(8);
  limit.NotePreemption(0);
  EXPECT_EQ(limit.limit(), 1);
  EXPECT_TRUE(limit.Admits(0, 8));
  EXPECT_FALSE(limit.Admits(1, 1));
}

// The cost of a workload whose memory is too small.
struct Cost {
  int64_t steps = 0;
  Scheduler::Counters counters;
  int64_t finished = 0;
};

Cost RunWorkload(uint64_t seed, bool follow_usage) {
  Scheduler scheduler({.blocks = 200, .max_sequences = 32, .max_context = 1024, .follow_usage = follow_usage});
  scheduler.SetVersion({1, 0});
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> lengths(4.5, 0.9);
  for (uint64_t key = 1; key <= 150; ++key) {
    Scheduler::Request request;
    request.key = key;
    auto prompt = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(40));
    for (int32_t& token : *prompt) token = static_cast<int32_t>(random() % 1000);
    request.prompt = prompt;
    auto sampling = std::make_shared<SamplingParams>();
    sampling->max_new_tokens = static_cast<int32_t>(std::min(800.0, 1 + lengths(random)));
    request.sampling = sampling;
    request.seeds.assign(1 + random() % 4, key);
    scheduler.Add(std::move(request));
  }
  Cost cost;
  while (scheduler.HasWork() && cost.steps < 200000) {
    const StepPlan plan = scheduler.Plan();
    size_t draws = plan.rows.size();
    for (const PrefillChunk& chunk : plan.chunks) draws += chunk.draws.size();
    ++cost.steps;
    for (const Scheduler::Drawn& drawn : scheduler.Complete(plan.id, std::vector<int32_t>(draws, 7))) {
      cost.finished += drawn.finish.has_value() ? 1 : 0;
    }
  }
  EXPECT_FALSE(scheduler.HasWork()) << "seed " << seed << ": a sequence starves";
  EXPECT_EQ(scheduler.free_blocks(), 200);
  cost.counters = scheduler.counters();
  return cost;
}

TEST(SchedulerConcurrencyTest, FollowingTheBlocksInUsePreemptsAFractionAndComputesLessAgain) {
  Cost greedy, following;
  auto add = [](Cost& sum, const Cost& cost) {
    sum.steps += cost.steps;
    sum.finished += cost.finished;
    sum.counters.preemptions += cost.counters.preemptions;
    sum.counters.prefilled_tokens += cost.counters.prefilled_tokens;
  };
  for (uint64_t seed = 1; seed <= 40 / SYNCOPATE_ONE_RUN_IN; ++seed) {
    add(greedy, RunWorkload(seed, false));
    add(following, RunWorkload(seed, true));
  }
  EXPECT_EQ(following.finished, greedy.finished);
  EXPECT_LT(following.counters.preemptions * 3, greedy.counters.preemptions);
  EXPECT_LT(following.counters.prefilled_tokens, greedy.counters.prefilled_tokens);
  // The limit has a price: fewer sequences run at once, so there are more steps, each of them smaller.
  EXPECT_LT(following.steps, greedy.steps * 1.35);
  RecordProperty("preemptions_greedy", static_cast<int>(greedy.counters.preemptions));
  RecordProperty("preemptions_following", static_cast<int>(following.counters.preemptions));
}

}  // namespace
}  // namespace syncopate::rollouter
