#include "trainer/loop/evaluation_rounds.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/clock.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/trainer/loop/step_loop_world.h"

namespace syncopate::trainer {
namespace {

using syncopate::testing::IsOk;

TEST(EvaluationRoundsTest, AnEvaluationCanBeAnsweredUntilItsVersionIsLeftForANewerOne) {
  TrainingDataWorld world;
  const std::unique_ptr<TrainingData> data = world.Open().value();
  const auto rollouter = std::make_shared<FakeRollouter>(data.get()),
             idle = std::make_shared<FakeRollouter>(data.get());
  const SessionId session =
      data->Connect(TrainingDataWorld::Member("rollouter-0"), TrainingDataWorld::kRunId, rollouter).value();
  ASSERT_THAT(data->Connect(TrainingDataWorld::Member("rollouter-1"), TrainingDataWorld::kRunId, idle), IsOk());
  rollouter->HoldAnswers(LeaseKind::kEvaluation, true);
  rollouter->Serve(session, {1, 0});
  for (int64_t step = 1; step <= 2; ++step) {
    ASSERT_THAT(NextBatch(*data, Clock::Real()->Now() + kTestDeadline), IsOk());
    data->FinishStep();
    data->RecordPublished({1, step});
  }
  RecordingObserver observer;
  LoopControl control({1, 2});
  PhaseTimes phases(&observer, Clock::Real()->Now());
  EvaluationRounds rounds({.data = data.get(),
                           .prompts = world.evaluation_prompts.get(),
                           .control = &control,
                           .checkpoints = nullptr,  // nothing is reported
                           .alarms = nullptr,
                           .observer = &observer,
                           .phases = &phases,
                           .syncs_fail = nullptr});
  EXPECT_FALSE(rounds.IsAnswerable()) << "there is none";
  rounds.Start({1, 1});
  EXPECT_TRUE(rounds.IsAnswerable()) << "its sync is under way";
  rollouter->Serve(session, {1, 1});
  EXPECT_TRUE(rounds.IsAnswerable());
  rollouter->Serve(session, {1, 2});
  rounds.Collect(absl::InfinitePast());
  EXPECT_TRUE(rounds.under_way()) << "the other rollouter serves nothing yet";
  EXPECT_FALSE(rounds.IsAnswerable());
  rollouter->Stop();
  idle->Stop();
  data->Stop();
}

}  // namespace
}  // namespace syncopate::trainer
