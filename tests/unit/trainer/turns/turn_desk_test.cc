#include "trainer/turns/turn_desk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "tests/support/hand_clock.h"
#include "tests/support/status_matchers.h"

namespace syncopate::trainer {
namespace {

using syncopate::testing::HandClock;
using syncopate::testing::HasReason;
using syncopate::testing::IsOk;
using ::testing::ElementsAre;
using State = TurnDesk::Report::State;

class TurnDeskTest : public ::testing::Test {
 protected:
  // A rollouter that does at once what it is told, if it `obeys`.
  void Connect(const std::string& name, int64_t stream, bool obeys = true) {
    desk_.Connect(name, "1", stream, /*yielded=*/false, [this, name, stream, obeys](bool yield, int64_t turn) {
      MutexLock lock(&mutex_);
      told_.emplace_back(name, yield);
      if (obeys) answers_.push_back({name, stream, {turn, yield ? State::kYielded : State::kBack, ++bytes_}});
    });
  }
  // Lets time pass and delivers the answers that have been given until the step thread has what it waits for.
  absl::Status Take(absl::Duration pace = absl::Milliseconds(100)) {
    absl::Status taken;
    std::atomic<bool> done = false;
    std::thread step([&] {
      taken = desk_.Take([this] { return unwanted_.load(); });
      done = true;
    });
    while (!done) {
      Deliver();
      clock_.Advance(pace);
      std::this_thread::yield();
    }
    step.join();
    return taken;
  }
  void Deliver() {
    std::vector<Answer> answers;
    {
      MutexLock lock(&mutex_);
      answers.swap(answers_);
    }
    for (const Answer& one : answers) desk_.Record(one.name, one.stream, one.report);
  }

  struct Answer {
    std::string name;
    int64_t stream = 0;
    TurnDesk::Report report;
  };
  HandClock clock_;
  Mutex mutex_;
  std::vector<std::pair<std::string, bool>> told_ ABSL_GUARDED_BY(mutex_);
  std::vector<Answer> answers_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  using Away = std::pair<int64_t, bool>;
  std::vector<Away> away_;
  std::vector<int64_t> evicted_;
  std::atomic<bool> has_room_ = true;
  std::atomic<bool> unwanted_ = false;
  TurnDesk desk_{{},
                 {.clock = &clock_,
                  .set_away = [this](int64_t stream, bool away) { away_.emplace_back(stream, away); },
                  .evict = [this](int64_t stream, const absl::Status&) { evicted_.push_back(stream); },
                  .has_room = [this]() -> absl::Status {
                    return has_room_ ? absl::OkStatus() : absl::ResourceExhaustedError("1 MiB are free, of 2");
                  }}};
};

TEST_F(TurnDeskTest, TheStepThreadGetsTheCardWhenAllHaveLeftAndTheirClocksStandStillUntilTheyAreBack) {
  Connect("a", 1);
  Connect("b", 2);
  Deliver();
  ASSERT_THAT(Take(), IsOk());
  EXPECT_THAT(away_, ElementsAre(Away(1, true), Away(2, true)));
  EXPECT_THAT(desk_.GetStatus().holders, ElementsAre());
  EXPECT_EQ(desk_.GetStatus().turn, 1);
  away_.clear();
  desk_.GiveBack();
  EXPECT_EQ(desk_.GetStatus().phase, CardTurns::Phase::kReceiving);
  Deliver();
  EXPECT_EQ(desk_.GetStatus().phase, CardTurns::Phase::kRollouters);
  EXPECT_THAT(away_, ElementsAre(Away(1, false), Away(2, false)));
  ASSERT_THAT(Take(), IsOk());
}

TEST_F(TurnDeskTest, AStreamThatAnotherHasReplacedNeitherReportsNorLeaves) {
  Connect("a", 1, /*obeys=*/false);
  Connect("a", 2);
  desk_.Record("a", 1, {.turn = 0, .state = State::kYielded});
  desk_.Disconnect("a", 1, /*in_order=*/true);
  EXPECT_THAT(desk_.GetStatus().holders, ElementsAre("a"));
  ASSERT_THAT(Take(), IsOk());
}

TEST_F(TurnDeskTest, AConnectedRollouterThatAsksForTheModelOnceMoreIsStillToldToLeave) {
  Connect("a", 1);
  Deliver();
  int calls = 0;
  desk_.CallInRolloutersTurn({"a", "1"}, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
  ASSERT_THAT(Take(), IsOk());
  EXPECT_THAT(evicted_, ElementsAre());
  MutexLock lock(&mutex_);
  EXPECT_THAT(told_, ElementsAre(std::pair<std::string, bool>("a", false), std::pair<std::string, bool>("a", true)));
}

TEST_F(TurnDeskTest, ANewcomerThatIsLostDelaysATurnNoLongerThanABrokenStream) {
  desk_.CallInRolloutersTurn({"a", "1"}, [] {});
  desk_.LoseArrival({"a", "1"});
  clock_.Advance(CardTurns::Options().absent_limit);
  desk_.Look();
  unwanted_ = true;  // a turn that does not begin at once is given back
  ASSERT_THAT(Take(/*pace=*/absl::ZeroDuration()), IsOk());
}

TEST_F(TurnDeskTest, WhatIsForTheRolloutersTurnWaitsForItsBegin) {
  int calls = 0;
  desk_.CallInRolloutersTurn({}, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
  ASSERT_THAT(Take(), IsOk());
  desk_.CallInRolloutersTurn({}, [&] { ++calls; });
  desk_.CallInRolloutersTurn({}, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
  desk_.GiveBack();
  EXPECT_EQ(calls, 3);
}

TEST_F(TurnDeskTest, ACallThatNobodyWaitsForAnyMoreIsFreedAtOnce) {
  ASSERT_THAT(Take(), IsOk());
  auto alive = std::make_shared<int>(0);
  const int64_t waiting = desk_.CallInRolloutersTurn({"a", "1"}, [alive] { ++*alive; });
  EXPECT_EQ(alive.use_count(), 2);
  desk_.Forget(waiting);
  EXPECT_EQ(alive.use_count(), 1);
  desk_.Forget(waiting);
  desk_.GiveBack();
  EXPECT_EQ(*alive, 0);
  EXPECT_THAT(desk_.GetStatus().holders, ElementsAre());
}

TEST_F(TurnDeskTest, WhoIsAnsweredCountsAsBeingOnTheCardsAndATurnWaitsUntilItHasLeft) {
  ASSERT_THAT(Take(), IsOk());
  int calls = 0;
  desk_.CallInRolloutersTurn({"a", "1"}, [&] { ++calls; });
  EXPECT_THAT(desk_.GetStatus().holders, ElementsAre());
  desk_.GiveBack();
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(desk_.GetStatus().holders, ElementsAre("a"));
  EXPECT_EQ(desk_.CallInRolloutersTurn({"b", "1"}, [&] { ++calls; }), 0);
  EXPECT_THAT(desk_.GetStatus().holders, ElementsAre("a", "b"));
  unwanted_ = true;
  EXPECT_THAT(Take(/*pace=*/absl::ZeroDuration()), HasReason("TURN_UNWANTED"));
  unwanted_ = false;
  Connect("a", 1);
  Connect("b", 2);
  EXPECT_THAT(Take(), IsOk());
}

TEST_F(TurnDeskTest, TheEndOfAStreamIsNotThatOfTheSuccessorThatHasAskedForTheModelMeanwhile) {
  Connect("a", 1);
  Deliver();
  desk_.CallInRolloutersTurn({"a", "2"}, [] {});
  desk_.Disconnect("a", 1, /*in_order=*/true);
  EXPECT_THAT(desk_.GetStatus().holders, ElementsAre("a"));
}

TEST_F(TurnDeskTest, WhoLeavesInOrderIsNotWaitedFor) {
  Connect("a", 1, /*obeys=*/false);
  desk_.Disconnect("a", 1, /*in_order=*/true);
  ASSERT_THAT(Take(), IsOk());
  EXPECT_THAT(evicted_, ElementsAre());
}

TEST_F(TurnDeskTest, WhoDoesNothingIsEvictedAndIfTheCardThenHasNoRoomTheTurnIsStuck) {
  Connect("a", 1, /*obeys=*/false);
  ASSERT_THAT(Take(), IsOk()) << "there is room";
  EXPECT_THAT(evicted_, ElementsAre(1));
  desk_.GiveBack();
  has_room_ = false;
  const absl::Status stuck = Take();
  EXPECT_THAT(stuck, HasReason("TURN_STUCK"));
  EXPECT_THAT(std::string(stuck.message()), ::testing::HasSubstr("a did not leave it"));
  EXPECT_THAT(std::string(stuck.message()), ::testing::HasSubstr("1 MiB are free, of 2"));
}

TEST_F(TurnDeskTest, ATurnThatIsNoLongerWantedIsGivenBackToThoseWhoHaveLeftForIt) {
  Connect("a", 1);
  Connect("slow", 2, /*obeys=*/false);
  unwanted_ = true;
  EXPECT_THAT(Take(/*pace=*/absl::ZeroDuration()), HasReason("TURN_UNWANTED"));
  using Told = std::pair<std::string, bool>;
  {
    MutexLock lock(&mutex_);
    EXPECT_THAT(told_, ElementsAre(Told("a", false), Told("slow", false), Told("a", true), Told("slow", true),
                                   Told("a", false), Told("slow", false)));
  }
  EXPECT_EQ(desk_.GetStatus().phase, CardTurns::Phase::kReceiving);
  int calls = 0;
  desk_.CallInRolloutersTurn({}, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

// A sync that moves bytes and fails, for ever.
TEST_F(TurnDeskTest, SoIsOneThatWaitsForARollouterThatIsAlwaysOnItsWayBack) {
  Connect("a", 1);
  ASSERT_THAT(Take(), IsOk());
  desk_.GiveBack();
  EXPECT_EQ(desk_.GetStatus().phase, CardTurns::Phase::kReceiving);
  {
    MutexLock lock(&mutex_);
    answers_.clear();
  }
  unwanted_ = true;
  EXPECT_THAT(Take(/*pace=*/absl::ZeroDuration()), HasReason("TURN_UNWANTED"));
  EXPECT_EQ(desk_.GetStatus().turn, 1) << "none has begun";
  unwanted_ = false;
  desk_.Record("a", 1, {.turn = 1, .state = State::kBack});
  EXPECT_THAT(Take(), IsOk()) << "the next can be asked for";
}

TEST_F(TurnDeskTest, WhoDoesNotComeBackIsEvictedWhileTheStepThreadWaitsForABatch) {
  Connect("a", 1, /*obeys=*/true);
  ASSERT_THAT(Take(), IsOk());
  desk_.GiveBack();
  clock_.Advance(absl::Seconds(11));
  desk_.Look();
  EXPECT_THAT(evicted_, ElementsAre(1));
  EXPECT_EQ(desk_.GetStatus().phase, CardTurns::Phase::kRollouters);
}

}  // namespace
}  // namespace syncopate::trainer
