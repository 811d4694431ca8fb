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
  ASSERT_THAT(plan.copies, SizeIs(2)) << "the last user keeps the block";
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
  scheduler_->Add(MakeRequest(1, 40, 1, 1));  // blocks 0, 1, 2, of which 0 and 1 are kept for their prefix
  while (scheduler_->HasWork()) Step();
  Scheduler::Request other = MakeRequest(2, 60, 1, 30);  // blocks 2, 3, 4, 5: the lowest free ones
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
  EXPECT_EQ(plan.copies[0].to, 1) << "the oldest kept prefix loses its last block";
  EXPECT_EQ(plan.copies[0].tokens, kBlockTokens);
  EXPECT_THAT(plan.rows, SizeIs(1)) << "decoding goes on in the same step";
  EXPECT_FALSE(scheduler_->has_lent()) << "the copy is in progress";
  scheduler_->Complete(plan.id, runner_->Execute(plan));
  EXPECT_TRUE(scheduler_->has_lent());
  EXPECT_EQ(scheduler_->free_blocks(), 1);
  runner_->TakeAway(5);
  scheduler_->Add(MakeRequest(3, 90, 1, 1));  // needs six blocks, so it waits until they are free again
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

TEST_F(SchedulerTest, WhileManyDecodeAFewPromptsWaitForOthersSoThatOnePassComputesThem) {
  Scheduler::Options options = Roomy();
  options.max_prefill_tokens = 32;
  options.max_gathering_plans = 3;
  options.decoding_to_gathering = 2;
  Start(options);
  scheduler_->Add(MakeRequest(1, 10, 4, 50));
  EXPECT_THAT(Step().chunks, SizeIs(1)) << "nothing decodes, so there is nothing to wait beside";

  scheduler_->Add(MakeRequest(2, 5, 1, 4));
  EXPECT_THAT(Step().chunks, IsEmpty());
  scheduler_->Add(MakeRequest(3, 6, 1, 4));
  EXPECT_THAT(Step().chunks, IsEmpty());
  scheduler_->Add(MakeRequest(4, 7, 1, 4));
  StepPlan plan = Step();
  EXPECT_THAT(plan.chunks, SizeIs(3)) << "three wait beside four that decode";
  EXPECT_THAT(plan.rows, SizeIs(4));

  while (scheduler_->running_sequences() > 4) Step();
  scheduler_->Add(MakeRequest(5, 5, 1, 4));
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Step().chunks, IsEmpty()) << i;
  EXPECT_THAT(Step().chunks, SizeIs(1)) << "it has waited long enough";

  scheduler_->Add(MakeRequest(6, 32, 1, 4));
  EXPECT_THAT(Step().chunks, SizeIs(1)) << "it fills a pass";
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

TEST_F(SchedulerTest, InstallsKeepThePrefixesOfTheBaseAndANewEpochDoesNot) {
  Start(Roomy());
  const auto begin_of = [this](uint64_t key) {
    Scheduler::Request request = MakeRequest(key, 40, 1, 1);
    request.adapter = kBaseAdapter;
    scheduler_->Add(request);
    const StepPlan plan = Step();
    EXPECT_EQ(plan.starts.at(0).adapter, kBaseAdapter);
    return plan.chunks.at(0).begin;
  };
  scheduler_->Add(MakeRequest(1, 40, 1, 1));
  EXPECT_EQ(Step().starts.at(0).adapter, 0);
  EXPECT_EQ(begin_of(2), 0) << "what the policy has computed is not the base's";
  EXPECT_EQ(begin_of(3), 32);
  scheduler_->SetVersion({1, 1});
  EXPECT_EQ(begin_of(4), 32);
  scheduler_->SetVersion({2, 0});
  EXPECT_EQ(begin_of(5), 0) << "another trainer may have another base";
  EXPECT_EQ(scheduler_->free_blocks(), 100);
}

// A request of the base whose prompt is half computed goes on after an install; its prompt is a prefix for others.
TEST_F(SchedulerTest, AnInstallCutsNoPromptOfTheBaseInTwo) {
  Scheduler::Options options = Roomy();
  options.max_prefill_tokens = 20;
  Start(options);
  Scheduler::Request request = MakeRequest(1, 40, 1, 1);
  request.adapter = kBaseAdapter;
  scheduler_->Add(request);
  Step();
  scheduler_->SetVersion({1, 1});
  EXPECT_EQ(Step().chunks[0].begin, 20);
  request = MakeRequest(2, 40, 1, 1);
  request.adapter = kBaseAdapter;
  scheduler_->Add(request);
  EXPECT_EQ(Step().chunks[0].begin, 32);
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
  // Planned before the scheduler knows that the first token stops the sample.
  const StepPlan second = scheduler_->Plan();
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
  // The first stop sequence begins as the answer does and goes on beyond it. The second begins with each token and
  // breaks off.
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
  bad.push_back(MakeRequest(1, 60, 1, 20));  // needs five blocks at the end
  bad.push_back(MakeRequest(1, 32, 3, 10));  // needs two blocks for the prompt, and one for each sample
  for (const Scheduler::Request& request : bad) {
    EXPECT_EQ(ErrorReason(scheduler_->Check(request)), "BAD_REQUEST") << request.prompt->size();
  }
  options.blocks = 0;
  EXPECT_EQ(ErrorReason(options.Validate()), "BAD_OPTIONS");
}

Scheduler::Request MakeTurns(uint64_t key, int prompt_tokens, int samples, int turn_tokens, int64_t total) {
  Scheduler::Request request = MakeRequest(key, prompt_tokens, samples, turn_tokens);
  request.max_total_tokens = total;
  return request;
}

TEST_F(SchedulerTest, TheEndOfATurnParksASampleThatKeepsItsBlocksAndNoSlot) {
  Start(Roomy());
  scheduler_->Add(MakeTurns(1, 20, 1, 3, 30));
  for (int i = 0; i < 3; ++i) Step();
  ASSERT_THAT(drawn_, SizeIs(1));
  EXPECT_EQ(drawn_[0].finish, FinishReason::kLength) << "of the turn";
  EXPECT_EQ(scheduler_->parked_sequences(), 1);
  EXPECT_EQ(scheduler_->running_sequences(), 0);
  EXPECT_EQ(scheduler_->waiting_sequences(), 0);
  EXPECT_FALSE(scheduler_->HasWork());
  EXPECT_TRUE(scheduler_->HasRequests());
  EXPECT_EQ(scheduler_->free_blocks(), 100 - 2);
  EXPECT_TRUE(scheduler_->Plan().IsEmpty());

  const std::vector<int32_t> given = {5, 6, 7, 8};
  ASSERT_TRUE(scheduler_->MayExtend(1, 0, 4));
  scheduler_->Extend(1, 0, given);
  const StepPlan plan = Step();
  ASSERT_THAT(plan.chunks, SizeIs(1));
  EXPECT_EQ(plan.chunks[0].begin, 22) << "only the turn's last token and those given are computed";
  EXPECT_THAT(plan.chunks[0].tokens, SizeIs(5));
  ASSERT_THAT(plan.starts, SizeIs(1));
  EXPECT_THAT(plan.starts[0].drawn, SizeIs(7)) << "so its next draw has the number 7";
  while (scheduler_->HasWork()) Step();
  scheduler_->End(1, 0);
  EXPECT_FALSE(scheduler_->HasRequests());
  EXPECT_EQ(scheduler_->free_blocks(), 100);
}

TEST_F(SchedulerTest, ParkedSamplesGiveUpTheirBlocksBeforeAnybodyIsPreempted) {
  Scheduler::Options options = Roomy();
  options.blocks = 6;
  options.max_kept_blocks = 0;
  Start(options);
  scheduler_->Add(MakeTurns(1, 40, 1, 1, 40));
  Step();
  ASSERT_EQ(scheduler_->parked_sequences(), 1);
  EXPECT_EQ(scheduler_->free_blocks(), 3);
  scheduler_->Add(MakeRequest(2, 30, 1, 60));
  for (int i = 0; i < 5; ++i) Step();
  EXPECT_EQ(scheduler_->counters().given_up, 0) << "there is room for both samples";
  while (scheduler_->HasWork()) Step();
  EXPECT_EQ(scheduler_->counters().given_up, 1);
  EXPECT_EQ(scheduler_->counters().preemptions, 0);
  scheduler_->Extend(1, 0, std::vector<int32_t>{3});
  const StepPlan plan = Step();
  ASSERT_THAT(plan.chunks, SizeIs(1));
  EXPECT_EQ(plan.chunks[0].begin, 0) << "the sample has lost its blocks: all tokens are computed again";
  EXPECT_THAT(plan.chunks[0].tokens, SizeIs(42));
  EXPECT_THAT(scheduler_->Abort(1), ElementsAre(0));
  EXPECT_EQ(scheduler_->free_blocks(), 6);
}

TEST_F(SchedulerTest, NobodyGivesUpBlocksInVain) {
  Scheduler::Options options = Roomy();
  options.blocks = 10;
  options.max_kept_blocks = 0;
  Start(options);
  scheduler_->Add(MakeTurns(1, 16, 1, 1, 40));
  Step();
  Scheduler::Request second = MakeRequest(2, 96, 1, 4), third = MakeRequest(3, 90, 1, 4);
  second.adapter = 2;  // no block is shared
  third.adapter = 3;
  scheduler_->Add(second);
  Step();
  ASSERT_EQ(scheduler_->running_sequences(), 1);
  scheduler_->Add(third);
  Step();
  EXPECT_EQ(scheduler_->waiting_sequences(), 1);
  EXPECT_EQ(scheduler_->counters().given_up, 0) << "even with the parked one's block there is no room";
}

// The sibling shares the block in which the sample continues, and there is no room for a copy.
TEST_F(SchedulerTest, AParkedSiblingGivesUpABlockRatherThanHavingItCopied) {
  Scheduler::Options options = Roomy();
  options.blocks = 3;
  options.max_kept_blocks = 0;
  Start(options);
  scheduler_->Add(MakeTurns(1, 24, 2, 1, 24));
  Step();
  ASSERT_EQ(scheduler_->parked_sequences(), 2);
  EXPECT_EQ(scheduler_->free_blocks(), 1) << "both samples share the prompt's two blocks";
  scheduler_->Extend(1, 0, std::vector<int32_t>(18, 3));
  const StepPlan plan = Step();
  ASSERT_THAT(plan.chunks, SizeIs(1));
  EXPECT_EQ(plan.chunks[0].begin, 24);
  EXPECT_THAT(plan.copies, IsEmpty());
  EXPECT_EQ(scheduler_->counters().given_up, 1);
}

TEST_F(SchedulerTest, AParkedSampleWaitsForNoPlanAndOthersGetItsSlot) {
  Scheduler::Options options = Roomy();
  options.max_sequences = 1;
  Start(options);
  scheduler_->Add(MakeTurns(1, 4, 1, 1, 40));
  scheduler_->Add(MakeRequest(2, 4, 1, 2));
  Step();
  EXPECT_EQ(scheduler_->parked_sequences(), 1);
  scheduler_->Extend(1, 0, std::vector<int32_t>{3});
  EXPECT_EQ(Step().starts[0].key, 1) << "the request arrived first";
  Step();
  EXPECT_EQ(scheduler_->running_sequences(), 1);
  while (scheduler_->HasWork()) Step();
  EXPECT_EQ(scheduler_->parked_sequences(), 1);
}

TEST_F(SchedulerTest, GivenTokensNeedRoomForOneMore) {
  Start(Roomy());
  scheduler_->Add(MakeTurns(1, 90, 1, 2, 50));
  scheduler_->Add(MakeTurns(2, 10, 1, 2, 12));
  while (scheduler_->HasWork()) Step();
  EXPECT_TRUE(scheduler_->MayExtend(1, 0, 7));
  EXPECT_FALSE(scheduler_->MayExtend(1, 0, 8)) << "the context has 100 tokens";
  EXPECT_TRUE(scheduler_->MayExtend(2, 0, 9));
  EXPECT_FALSE(scheduler_->MayExtend(2, 0, 10)) << "an answer has 12";
  EXPECT_FALSE(scheduler_->MayExtend(3, 0, 1)) << "there is no such request";
  scheduler_->Extend(2, 0, std::vector<int32_t>(9, 1));
  while (scheduler_->HasWork()) Step();
  ASSERT_THAT(drawn_, SizeIs(1));
  EXPECT_EQ(drawn_[0].finish, FinishReason::kLength);
  EXPECT_FALSE(scheduler_->MayExtend(2, 0, 1));
}

TEST_F(SchedulerTest, ASampleMayStartParkedAndBeRewound) {
  Start(Roomy());
  Scheduler::Request request = MakeTurns(1, 20, 2, 3, 30);
  request.starts_parked = true;
  scheduler_->Add(request);
  EXPECT_FALSE(scheduler_->HasWork());
  EXPECT_EQ(scheduler_->parked_sequences(), 2);
  scheduler_->Extend(1, 0, std::vector<int32_t>{4, 5});
  scheduler_->Extend(1, 1, {});
  StepPlan plan = Step();
  ASSERT_THAT(plan.chunks, SizeIs(2));
  EXPECT_THAT(plan.chunks[0].tokens, SizeIs(22));
  EXPECT_THAT(plan.chunks[1].tokens, SizeIs(20));
  while (scheduler_->HasWork()) Step();
  EXPECT_FALSE(scheduler_->MayExtend(1, 1, 0)) << "the sample has tokens";
  scheduler_->Rewind(1, 0);
  EXPECT_TRUE(scheduler_->MayExtend(1, 0, 0));
  scheduler_->Extend(1, 0, std::vector<int32_t>{6});
  plan = Step();
  ASSERT_THAT(plan.starts, SizeIs(1));
  EXPECT_THAT(plan.starts[0].drawn, ElementsAre(6)) << "no token of the earlier play";
  EXPECT_EQ(plan.chunks[0].begin, 16) << "but the prompt's first block is found again";
  scheduler_->Abort(1);
  EXPECT_EQ(scheduler_->free_blocks(), 100);
  request.key = 2;
  request.max_total_tokens = 0;
  EXPECT_EQ(ErrorReason(scheduler_->Check(request)), "BAD_REQUEST");
}

TEST_F(SchedulerTest, AStopSequenceDoesNotBeginInTheTurnBefore) {
  Start(Roomy());
  Scheduler::Request request = MakeTurns(1, 4, 1, 1, 40);
  scheduler_->Add(request);
  Step();
  const StepPlan first = [&] {
    scheduler_->Extend(1, 0, std::vector<int32_t>{9});
    return scheduler_->Plan();
  }();
  const std::vector<int32_t> token = runner_->Execute(first);
  scheduler_->Complete(first.id, token);
  scheduler_->Abort(1);

  // The tokens are the same; the stop sequence is the given token and the token drawn after it.
  auto sampling = std::make_shared<SamplingParams>(*request.sampling);
  sampling->stop_sequences = {{9, token[0]}};
  request.sampling = sampling;
  request.key = 2;
  scheduler_->Add(request);
  Step();
  scheduler_->Extend(2, 0, std::vector<int32_t>{9});
  Step();
  ASSERT_THAT(drawn_, SizeIs(1));
  EXPECT_EQ(drawn_[0].finish, FinishReason::kLength);
}

}  // namespace
}  // namespace syncopate::rollouter
