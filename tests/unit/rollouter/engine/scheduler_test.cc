#include "rollouter/engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "tests/unit/rollouter/engine/stamping_runner.h"

namespace syncopate::rollouter {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Scheduler::Options Roomy() {
  Scheduler::Options options;
  options.blocks = 100;
  options.max_sequences = 8;
  options.max_context = 100;
  return options;
}

Scheduler::Request MakeRequest(uint64_t key, int prompt_tokens, int samples, int new_tokens) {
  Scheduler::Request request;
  request.key = key;
  auto prompt = std::make_shared<std::vector<int32_t>>();
  for (int i = 0; i < prompt_tokens; ++i) prompt->push_back(i % 7);
  request.prompt = prompt;
  auto sampling = std::make_shared<SamplingParams>();
  sampling->max_new_tokens = new_tokens;
  request.sampling = sampling;
  for (int i = 0; i < samples; ++i) request.seeds.push_back(key * 10 + static_cast<uint64_t>(i));
  return request;
}

class SchedulerTest : public ::testing::Test {
 protected:
  void Start(const Scheduler::Options& options) {
    ASSERT_TRUE(options.Validate().ok());
    scheduler_ = std::make_unique<Scheduler>(options);
    runner_ = std::make_unique<StampingRunner>(options);
    scheduler_->SetVersion({1, 0});
  }
  // Plans, runs and completes one step.
  StepPlan Step() {
    StepPlan plan = scheduler_->Plan();
    if (plan.IsEmpty()) return plan;
    drawn_ = scheduler_->Complete(plan.id, runner_->Execute(plan));
    EXPECT_THAT(runner_->errors(), IsEmpty());
    return plan;
  }

  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<StampingRunner> runner_;
  std::vector<Scheduler::Drawn> drawn_;
};

TEST_F(SchedulerTest, ComputesAPromptOnceForAllItsSamplesAndCopiesTheSharedBlockWhenTheyPart) {
  Start(Roomy());
  scheduler_->Add(MakeRequest(1, 20, 3, 5));
  StepPlan plan = Step();
  ASSERT_THAT(plan.chunks, SizeIs(1));
  EXPECT_THAT(plan.chunks[0].tokens, SizeIs(20));
  EXPECT_THAT(plan.chunks[0].draws, SizeIs(3));
  EXPECT_EQ(scheduler_->free_blocks(), 100 - 2);
  plan = Step();
  EXPECT_THAT(plan.rows, SizeIs(3));
  ASSERT_THAT(plan.copies, SizeIs(2)) << "the last of its users keeps the block";
  EXPECT_EQ(plan.copies[0].tokens, 4);
  EXPECT_EQ(scheduler_->free_blocks(), 100 - 4);
  while (scheduler_->HasWork()) Step();
  EXPECT_EQ(scheduler_->free_blocks(), 100);
}

TEST_F(SchedulerTest, LendsTheLastBlocksAndCopiesDownWhatIsInThem) {
  Scheduler::Options options = Roomy();
  options.blocks = 10;
  options.lent_blocks = 5;
  Start(options);
  scheduler_->Add(MakeRequest(1, 40, 1, 1));  // blocks 0, 1, 2, of which 0 and 1 stay for their prefix
  while (scheduler_->HasWork()) Step();
  Scheduler::Request other = MakeRequest(2, 60, 1, 30);  // 2, 3, 4, 5: the lowest that are free
  other.adapter = 1;
  scheduler_->Add(other);
  StepPlan plan = Step();
  ASSERT_THAT(plan.tables, SizeIs(4));
  EXPECT_EQ(plan.tables[0].block, 2);
  EXPECT_EQ(plan.tables[3].block, 5);
  scheduler_->Lend();
  EXPECT_FALSE(scheduler_->has_lent()) << "block 5 is in use";
  plan = scheduler_->Plan();
  ASSERT_THAT(plan.copies, SizeIs(1));
  EXPECT_EQ(plan.copies[0].from, 5);
  EXPECT_EQ(plan.copies[0].to, 1) << "the prefix that was kept longest gives its block: the last of the chain";
  EXPECT_EQ(plan.copies[0].tokens, kBlockTokens);
  EXPECT_THAT(plan.rows, SizeIs(1)) << "decoding goes on in the same step";
  EXPECT_FALSE(scheduler_->has_lent()) << "the copy is under way";
  scheduler_->Complete(plan.id, runner_->Execute(plan));
  EXPECT_TRUE(scheduler_->has_lent());
  EXPECT_EQ(scheduler_->free_blocks(), 1);
  runner_->TakeAway(5);
  scheduler_->Add(MakeRequest(3, 90, 1, 1));  // six blocks: it waits until they are there again
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Step().rows, SizeIs(1));
  EXPECT_EQ(scheduler_->waiting_sequences(), 1);
  runner_->GiveBack();
  scheduler_->Return();
  EXPECT_FALSE(scheduler_->has_lent());
  EXPECT_EQ(scheduler_->free_blocks(), 6);
  while (scheduler_->HasWork()) Step();
  EXPECT_EQ(scheduler_->free_blocks(), 10);
  EXPECT_EQ(scheduler_->counters().preemptions, 0);
  scheduler_->Lend();
  EXPECT_TRUE(scheduler_->has_lent()) << "nothing runs, and no plan is needed";
  scheduler_->Return();
}

TEST_F(SchedulerTest, WhoIsLastInOrderMakesRoomWhenBlocksAreLent) {
  Scheduler::Options options = Roomy();
  options.blocks = 10;
  options.lent_blocks = 6;
  options.host_blocks = 8;
  options.max_kept_blocks = 0;
  options.preemption = Scheduler::Preemption::kSwap;
  Start(options);
  for (uint64_t key : {1, 2}) {
    Scheduler::Request request = MakeRequest(key, 40, 1, 20);
    request.adapter = static_cast<int64_t>(key);
    scheduler_->Add(request);
  }
  Step();
  scheduler_->Lend();
  const StepPlan plan = Step();
  EXPECT_EQ(scheduler_->counters().preemptions, 1);
  EXPECT_THAT(plan.swaps_out, SizeIs(3)) << "the second request's";
  EXPECT_THAT(plan.copies, IsEmpty()) << "the first one's blocks are the lowest";
  EXPECT_TRUE(scheduler_->has_lent());
  EXPECT_EQ(scheduler_->waiting_sequences(), 1);
  runner_->TakeAway(4);
  Step();
  runner_->GiveBack();
  scheduler_->Return();
  while (scheduler_->HasWork()) Step();
  EXPECT_EQ(scheduler_->free_blocks(), 10);
}

TEST_F(SchedulerTest, CutsLongPromptsIntoChunksBesideTheDecodingOfOthers) {
  Scheduler::Options options = Roomy();
  options.max_prefill_tokens = 10;
  Start(options);
  scheduler_->Add(MakeRequest(1, 4, 1, 20));
  EXPECT_EQ(Step().draws(), 1);
  scheduler_->Add(MakeRequest(2, 24, 1, 1));
  for (size_t tokens : {10, 10, 4}) {
    const StepPlan plan = Step();
    EXPECT_THAT(plan.rows, SizeIs(1)) << "decoding waits for no prompt";
    ASSERT_THAT(plan.chunks, SizeIs(1));
    EXPECT_THAT(plan.chunks[0].tokens, SizeIs(tokens));
  }
  EXPECT_THAT(drawn_, SizeIs(2));
}

TEST_F(SchedulerTest, APrefixThatIsThereIsNotComputedAgainByTheSameVersionAndAdapter) {
  Start(Roomy());
  scheduler_->Add(MakeRequest(1, 40, 1, 1));
  while (scheduler_->HasWork()) Step();
  scheduler_->Add(MakeRequest(2, 40, 1, 1));
  StepPlan plan = Step();
  EXPECT_EQ(plan.chunks[0].begin, 32);
  EXPECT_EQ(scheduler_->counters().shared_tokens, 32);
  Scheduler::Request other = MakeRequest(3, 40, 1, 1);
  other.adapter = 1;
  scheduler_->Add(other);
  EXPECT_EQ(Step().chunks[0].begin, 0) << "another adapter";
  scheduler_->SetVersion({1, 1});
  scheduler_->Add(MakeRequest(4, 40, 1, 1));
  EXPECT_EQ(Step().chunks[0].begin, 0) << "another version";
  scheduler_->Add(MakeRequest(5, 32, 1, 1));
  EXPECT_EQ(Step().chunks[0].begin, 16) << "the last token is computed for its logits";
}

TEST_F(SchedulerTest, APromptThatAnInstallCutInTwoIsNoPrefixForOthers) {
  Scheduler::Options options = Roomy();
  options.max_prefill_tokens = 20;
  Start(options);
  scheduler_->Add(MakeRequest(1, 40, 1, 1));
  Step();
  scheduler_->SetVersion({1, 1});
  Step();
  scheduler_->Add(MakeRequest(2, 40, 1, 1));
  EXPECT_EQ(Step().chunks[0].begin, 0);
}

TEST_F(SchedulerTest, WhenBlocksRunOutTheLatestMakesRoomAndComesBackWithItsTokens) {
  for (auto preemption : {Scheduler::Preemption::kRecompute, Scheduler::Preemption::kSwap}) {
    Scheduler::Options options = Roomy();
    options.blocks = 6;
    options.host_blocks = 6;
    options.preemption = preemption;
    Start(options);
    scheduler_->Add(MakeRequest(1, 16, 1, 60));
    scheduler_->Add(MakeRequest(2, 15, 1, 60));
    int64_t finished = 0, swapped_in = 0;
    std::vector<uint64_t> order;
    while (scheduler_->HasWork()) {
      const StepPlan plan = Step();
      swapped_in += static_cast<int64_t>(plan.swaps_in.size());
      for (const Scheduler::Drawn& drawn : drawn_) {
        if (drawn.finish.has_value()) order.push_back(drawn.key);
      }
      ASSERT_LT(++finished, 1000);
    }
    EXPECT_THAT(order, ElementsAre(1, 2));
    EXPECT_GT(scheduler_->counters().preemptions, 0);
    EXPECT_EQ(swapped_in > 0, preemption == Scheduler::Preemption::kSwap);
    EXPECT_EQ(scheduler_->free_host_blocks(), 6);
  }
}

TEST_F(SchedulerTest, WhatWasLaunchedBeyondTheEndIsThrownAway) {
  Start(Roomy());
  Scheduler::Request request = MakeRequest(1, 4, 1, 10);
  auto sampling = std::make_shared<SamplingParams>(*request.sampling);
  for (int32_t token = 0; token < StampingRunner::kVocabulary; ++token) sampling->stop_token_ids.push_back(token);
  request.sampling = sampling;
  scheduler_->Add(request);
  const StepPlan first = scheduler_->Plan();
  const std::vector<int32_t> first_tokens = runner_->Execute(first);
  const StepPlan second = scheduler_->Plan();  // before the scheduler knows that the first token stops it
  const std::vector<int32_t> second_tokens = runner_->Execute(second);
  ASSERT_THAT(second.rows, SizeIs(1));
  EXPECT_TRUE(scheduler_->Plan().IsEmpty() || scheduler_->plans_under_way() == 3);
  const auto drawn = scheduler_->Complete(first.id, first_tokens);
  ASSERT_THAT(drawn, SizeIs(1));
  EXPECT_EQ(drawn[0].finish, FinishReason::kStop);
  EXPECT_FALSE(scheduler_->HasWork());
  EXPECT_EQ(scheduler_->free_blocks(), 100);
  EXPECT_THAT(scheduler_->Complete(second.id, second_tokens), IsEmpty());
  EXPECT_EQ(scheduler_->counters().thrown_away, 1);
}

TEST_F(SchedulerTest, AStopSequenceEndsASampleAndIsPartOfIt) {
  Start(Roomy());
  Scheduler::Request request = MakeRequest(1, 4, 1, 50);
  scheduler_->Add(request);
  std::vector<int32_t> free_run;
  while (scheduler_->HasWork()) {
    const StepPlan plan = scheduler_->Plan();
    const std::vector<int32_t> tokens = runner_->Execute(plan);
    free_run.push_back(tokens[0]);
    scheduler_->Complete(plan.id, tokens);
  }
  request.key = 2;
  auto sampling = std::make_shared<SamplingParams>(*request.sampling);
  sampling->stop_sequences = {{free_run[2], free_run[3], free_run[4]}};
  request.sampling = sampling;
  scheduler_->Add(request);
  int64_t steps = 0;
  while (scheduler_->HasWork()) {
    Step();
    ++steps;
  }
  EXPECT_EQ(drawn_[0].finish, FinishReason::kStop);
  EXPECT_EQ(steps, 5);
}

TEST_F(SchedulerTest, AStopSequenceThatNeverEndsLeavesTheAnswerItsLength) {
  Start(Roomy());
  Scheduler::Request request = MakeRequest(1, 4, 1, 6);
  scheduler_->Add(request);
  std::vector<int32_t> free_run;
  while (scheduler_->HasWork()) {
    const StepPlan plan = scheduler_->Plan();
    const std::vector<int32_t> tokens = runner_->Execute(plan);
    free_run.push_back(tokens[0]);
    scheduler_->Complete(plan.id, tokens);
  }
  // It begins as the answer does and goes on beyond it; the other begins with each token and breaks off.
  auto sampling = std::make_shared<SamplingParams>(*request.sampling);
  sampling->stop_sequences = {free_run, {free_run[0], -1}};
  sampling->stop_sequences[0].resize(200, free_run[1]);
  request.key = 2;
  request.sampling = sampling;
  scheduler_->Add(request);
  size_t steps = 0;
  for (; scheduler_->HasWork(); ++steps) Step();
  EXPECT_EQ(drawn_[0].finish, FinishReason::kLength);
  EXPECT_EQ(steps, free_run.size());
  EXPECT_EQ(scheduler_->free_blocks(), scheduler_->options().blocks);
}

TEST_F(SchedulerTest, GoesByPriorityThenDeadlineThenArrivalAndSomeGoFirst) {
  Scheduler::Options options = Roomy();
  options.max_sequences = 1;
  Start(options);
  std::vector<Scheduler::Request> requests;
  for (uint64_t key = 1; key <= 5; ++key) requests.push_back(MakeRequest(key, 4, 1, 1));
  requests[1].deadline = 7;
  requests[2].priority = 1;
  requests[3].first = true;
  requests[4].deadline = 5;
  for (Scheduler::Request& request : requests) scheduler_->Add(request);
  std::vector<uint64_t> order;
  while (scheduler_->HasWork()) {
    Step();
    for (const Scheduler::Drawn& drawn : drawn_) order.push_back(drawn.key);
  }
  EXPECT_THAT(order, ElementsAre(4, 3, 5, 2, 1));
}

TEST_F(SchedulerTest, ARequestThatOthersOvertookOftenEnoughGoesNext) {
  Scheduler::Options options = Roomy();
  options.max_sequences = 1;
  options.max_passed_over = 3;
  Start(options);
  scheduler_->Add(MakeRequest(1, 4, 1, 1));
  std::vector<uint64_t> order;
  for (uint64_t key = 2; key < 8; ++key) {
    Scheduler::Request important = MakeRequest(key, 4, 1, 1);
    important.priority = 5;
    scheduler_->Add(important);
    Step();
    order.push_back(drawn_[0].key);
  }
  EXPECT_THAT(order, ElementsAre(2, 3, 4, 1, 5, 6));
}

TEST_F(SchedulerTest, AbortGivesEverythingBackWhateverTheRequestWasDoing) {
  Scheduler::Options options = Roomy();
  options.max_sequences = 4;
  options.max_prefill_tokens = 8;
  Start(options);
  scheduler_->Add(MakeRequest(1, 4, 2, 20));
  Step();
  scheduler_->Add(MakeRequest(2, 30, 2, 20));
  Step();
  scheduler_->Add(MakeRequest(3, 4, 2, 20));
  EXPECT_EQ(scheduler_->waiting_sequences(), 2);
  for (uint64_t key : {2, 3, 1}) EXPECT_THAT(scheduler_->Abort(key), ElementsAre(0, 1));
  EXPECT_THAT(scheduler_->Abort(1), IsEmpty());
  EXPECT_EQ(scheduler_->free_blocks(), 100);
  EXPECT_EQ(scheduler_->running_sequences(), 0);
  EXPECT_TRUE(scheduler_->Plan().IsEmpty());
}

TEST_F(SchedulerTest, RefusesWhatCouldNeverRun) {
  Scheduler::Options options = Roomy();
  options.blocks = 4;
  Start(options);
  EXPECT_TRUE(scheduler_->Check(MakeRequest(1, 16, 3, 40)).ok());
  std::vector<Scheduler::Request> bad;
  bad.push_back(MakeRequest(1, 0, 1, 1));
  bad.push_back(MakeRequest(1, 101, 1, 1));
  bad.push_back(MakeRequest(1, 4, 0, 1));
  bad.push_back(MakeRequest(1, 4, 9, 1));
  bad.push_back(MakeRequest(1, 4, 1, 0));
  bad.push_back(MakeRequest(1, 60, 1, 20));  // five blocks in the end
  bad.push_back(MakeRequest(1, 32, 3, 10));  // two of the prompt, and one each
  for (const Scheduler::Request& request : bad) {
    EXPECT_EQ(ErrorReason(scheduler_->Check(request)), "BAD_REQUEST") << request.prompt->size();
  }
  options.blocks = 0;
  EXPECT_EQ(ErrorReason(options.Validate()), "BAD_OPTIONS");
}

}  // namespace
}  // namespace syncopate::rollouter
