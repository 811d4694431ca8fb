#include "trainer/turns/card_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/trainer/turns/turns_world.h"

namespace syncopate::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Action = CardTurns::Action;
using Kind = CardTurns::Action::Kind;
using Phase = CardTurns::Phase;

class CardTurnsTest : public ::testing::Test {
 protected:
  static absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }
  static Action Yield(const std::string& name, int64_t turn) { return {Kind::kTellYield, name, turn, {}}; }
  static Action ToBack(const std::string& name, int64_t turn) { return {Kind::kTellBack, name, turn, {}}; }
  static Action Just(Kind kind, int64_t turn) { return {kind, "", turn, {}}; }

  CardTurns turns_{{}};
};

TEST_F(CardTurnsTest, ATurnBeginsWhenEveryRollouterHasYieldedAndEndsWhenAllAreBack) {
  EXPECT_THAT(turns_.Connect("a", "1", false, At(0)), ElementsAre(ToBack("a", 0)));
  turns_.Connect("b", "1", false, At(0));
  EXPECT_THAT(turns_.Ask(At(1)), ElementsAre(Yield("a", 1), Yield("b", 1)));
  EXPECT_TRUE(turns_.IsAway("a"));
  EXPECT_THAT(turns_.Yielded("a", 1, At(2)), IsEmpty());
  EXPECT_THAT(turns_.Holders(), ElementsAre("b"));
  EXPECT_THAT(turns_.Yielded("b", 1, At(3)), ElementsAre(Just(Kind::kBegin, 1)));
  EXPECT_EQ(turns_.phase(), Phase::kTrainer);
  EXPECT_THAT(turns_.GiveBack(At(5)), ElementsAre(ToBack("a", 1), ToBack("b", 1)));
  EXPECT_THAT(turns_.Back("a", 1, At(6)), IsEmpty());
  EXPECT_FALSE(turns_.IsAway("a"));
  EXPECT_TRUE(turns_.IsAway("b"));
  EXPECT_THAT(turns_.Ask(At(7)), IsEmpty()) << "the next turn waits until all are back";
  EXPECT_THAT(turns_.Back("b", 1, At(8)), ElementsAre(Just(Kind::kFinish, 1), Yield("a", 2), Yield("b", 2)));
}

TEST_F(CardTurnsTest, WithoutRolloutersOnTheCardATurnBeginsAtOnce) {
  EXPECT_THAT(turns_.Ask(At(0)), ElementsAre(Just(Kind::kBegin, 1)));
  EXPECT_THAT(turns_.GiveBack(At(1)), ElementsAre(Just(Kind::kFinish, 1)));
}

TEST_F(CardTurnsTest, AReportOfAnEarlierTurnDoesNotCount) {
  turns_.Connect("a", "1", false, At(0));
  turns_.Ask(At(1));
  EXPECT_THAT(turns_.GiveBack(At(1)), ElementsAre(ToBack("a", 1))) << "the trainer no longer wants it";
  turns_.Back("a", 1, At(2));
  turns_.Ask(At(2));
  EXPECT_THAT(turns_.Yielded("a", 1, At(3)), IsEmpty());
  EXPECT_THAT(turns_.Yielded("a", 2, At(4)), ElementsAre(Just(Kind::kBegin, 2)));
}

TEST_F(CardTurnsTest, ABrokenStreamIsNoYieldUntilTheProcessIsKnownToBeGone) {
  turns_.Connect("a", "1", false, At(0));
  turns_.Ask(At(1));
  EXPECT_THAT(turns_.Disconnect("a", At(2)), IsEmpty());
  EXPECT_THAT(turns_.Tick(At(11)), IsEmpty());
  EXPECT_THAT(turns_.Connect("a", "1", false, At(11)), ElementsAre(Yield("a", 1))) << "it is told again";
  turns_.Disconnect("a", At(12));
  // It may have been stopped in the middle, with all that it has on the card.
  EXPECT_THAT(turns_.Tick(At(22)), ElementsAre(Action{Kind::kEvict, "a", 1, {}}, Just(Kind::kLookForRoom, 1)));
  EXPECT_THAT(turns_.Room(true, At(22)), ElementsAre(Just(Kind::kBegin, 1)));
  turns_.GiveBack(At(23));
  turns_.Connect("a", "2", false, At(24));
  turns_.Ask(At(25));
  turns_.Disconnect("a", At(26));
  EXPECT_THAT(turns_.Died("a", At(27)), ElementsAre(Just(Kind::kBegin, 2)));
}

TEST_F(CardTurnsTest, AProcessThatReplacesAnotherFreesItsCard) {
  turns_.Connect("a", "1", false, At(0));
  turns_.Ask(At(1));
  turns_.Disconnect("a", At(1));
  EXPECT_THAT(turns_.Connect("a", "2", true, At(3)), ElementsAre(Yield("a", 1), Just(Kind::kBegin, 1)));
}

TEST_F(CardTurnsTest, WhoMovesNoByteIsEvictedAndTheTrainerWaitsForRoom) {
  turns_.Connect("a", "1", false, At(0));
  turns_.Ask(At(0));
  EXPECT_THAT(turns_.Tick(At(9)), IsEmpty());
  turns_.Moved("a", 100, At(9));
  turns_.Moved("a", 100, At(15));  // nothing more
  EXPECT_THAT(turns_.Tick(At(18)), IsEmpty());
  EXPECT_THAT(turns_.Tick(At(19)), ElementsAre(Action{Kind::kEvict, "a", 1, {}}, Just(Kind::kLookForRoom, 1)));
  EXPECT_THAT(turns_.Room(false, At(19)), IsEmpty());
  EXPECT_THAT(turns_.Tick(At(20)), ElementsAre(Just(Kind::kLookForRoom, 1)));
  EXPECT_THAT(turns_.Room(true, At(20)), ElementsAre(Just(Kind::kBegin, 1)));
  // It is not waited for any more; its memory may still be there at the next turn.
  EXPECT_THAT(turns_.GiveBack(At(21)), ElementsAre(Just(Kind::kFinish, 1)));
  EXPECT_THAT(turns_.Ask(At(30)), ElementsAre(Just(Kind::kLookForRoom, 2)));
  EXPECT_THAT(turns_.Room(false, At(39)), IsEmpty());
  EXPECT_THAT(turns_.Room(false, At(40)), ElementsAre(Action{Kind::kStuck, "", 2, {"a"}}));
}

TEST_F(CardTurnsTest, WhoDoesNotComeBackIsEvictedToo) {
  turns_.Connect("a", "1", false, At(0));
  turns_.Ask(At(0));
  turns_.Yielded("a", 1, At(1));
  turns_.GiveBack(At(2));
  EXPECT_THAT(turns_.Tick(At(11)), IsEmpty());
  EXPECT_THAT(turns_.Tick(At(12)), ElementsAre(Action{Kind::kEvict, "a", 1, {}}, Just(Kind::kFinish, 1)));
}

TEST_F(CardTurnsTest, ANewcomerIsToldWhoseTurnItIsAndNobodyWaitsForItToBeBack) {
  turns_.Ask(At(0));
  EXPECT_THAT(turns_.Connect("a", "1", true, At(1)), ElementsAre(Yield("a", 1)));
  turns_.GiveBack(At(2));
  EXPECT_THAT(turns_.Connect("b", "1", true, At(2)), ElementsAre(ToBack("b", 1)));
  EXPECT_THAT(turns_.Back("a", 1, At(3)), ElementsAre(Just(Kind::kFinish, 1)));
}

TEST_F(CardTurnsTest, OneThatMakesItsEngineCountsFromItsArrivalUntilItConnectsOrIsTooLate) {
  turns_.Arrive("a", "1", At(0));
  EXPECT_THAT(turns_.Holders(), ElementsAre("a"));
  EXPECT_THAT(turns_.Ask(At(1)), IsEmpty()) << "there is no stream to tell it by";
  EXPECT_THAT(turns_.Tick(At(30)), IsEmpty());
  EXPECT_THAT(turns_.Connect("a", "1", false, At(31)), ElementsAre(Yield("a", 1)));
  EXPECT_THAT(turns_.Yielded("a", 1, At(32)), ElementsAre(Just(Kind::kBegin, 1)));
  turns_.GiveBack(At(33));
  turns_.Arrive("a", "2", At(40));
  turns_.Ask(At(41));
  EXPECT_THAT(turns_.Tick(At(99)), IsEmpty());
  EXPECT_THAT(turns_.Tick(At(100)), ElementsAre(Action{Kind::kEvict, "a", 2, {}}, Just(Kind::kLookForRoom, 2)));
}

TEST_F(CardTurnsTest, OneThatIsLostWhileItMakesItsEngineIsWaitedForAsLongAsForABrokenStream) {
  turns_.Arrive("a", "1", At(0));
  turns_.Ask(At(1));
  turns_.LoseArrival("a", "0", At(1));  // of a process before
  EXPECT_THAT(turns_.Tick(At(20)), IsEmpty());
  turns_.LoseArrival("a", "1", At(20));
  EXPECT_THAT(turns_.Tick(At(29)), IsEmpty());
  EXPECT_THAT(turns_.Tick(At(30)), ElementsAre(Action{Kind::kEvict, "a", 1, {}}, Just(Kind::kLookForRoom, 1)));
}

TEST_F(CardTurnsTest, OneThatConnectsAfterAllOrHasConnectedBeforeIsNotLost) {
  turns_.Arrive("a", "1", At(0));
  turns_.LoseArrival("a", "1", At(1));
  turns_.Connect("a", "1", false, At(5));
  turns_.LoseArrival("a", "1", At(6));
  EXPECT_THAT(turns_.Tick(At(100)), IsEmpty());
  EXPECT_THAT(turns_.Ask(At(101)), ElementsAre(Yield("a", 1)));
}

TEST_F(CardTurnsTest, TheEndOfAnOlderStreamGivesAnArrivalNoLessTime) {
  turns_.Connect("a", "1", false, At(0));
  turns_.Arrive("a", "2", At(1));
  turns_.Disconnect("a", At(2));
  turns_.Ask(At(3));
  EXPECT_THAT(turns_.Tick(At(40)), IsEmpty());
  EXPECT_THAT(turns_.Connect("a", "2", true, At(41)), ElementsAre(Yield("a", 1), Just(Kind::kBegin, 1)));
}

TEST_F(CardTurnsTest, ACardThatIsMeasuredIsLookedAtBeforeEveryTurnAndNamesWhoHasEnded) {
  CardTurns turns({.looks_always = true});
  turns.Connect("a", "1", false, At(0));
  turns.Died("a", At(1));
  EXPECT_THAT(turns.Ask(At(2)), ElementsAre(Just(Kind::kLookForRoom, 1)));
  EXPECT_THAT(turns.Room(false, At(2)), IsEmpty()) << "the memory of a process goes later than the process";
  EXPECT_THAT(turns.Tick(At(3)), ElementsAre(Just(Kind::kLookForRoom, 1)));
  EXPECT_THAT(turns.Room(true, At(3)), ElementsAre(Just(Kind::kBegin, 1)));
  turns.GiveBack(At(4));
  turns.Connect("b", "1", false, At(5));
  turns.Died("b", At(6));
  turns.Ask(At(7));
  EXPECT_THAT(turns.Room(false, At(17)), ElementsAre(Action{Kind::kStuck, "", 2, {"b"}}));
}

TEST_F(CardTurnsTest, LimitsMustBePositive) {
  EXPECT_TRUE(CardTurns::Options().Validate().ok());
  EXPECT_FALSE(CardTurns::Options{.room_limit = absl::ZeroDuration()}.Validate().ok());
  EXPECT_FALSE(CardTurns::Options{.arrive_limit = absl::Seconds(9)}.Validate().ok()) << "below absent_limit";
}

constexpr int kOneRunIn = SYNCOPATE_ONE_RUN_IN;

struct Totals {
  int64_t failed = 0;
  std::map<std::string, int64_t> kinds;
  std::string first_error;
  TurnsOutcome sums;
};

Totals SimulateMany(int runs, const MakeTurns& make_turns) {
  Totals totals;
  for (int seed = 1; seed <= runs; ++seed) {
    const TurnsOutcome outcome = TurnsWorld(static_cast<uint64_t>(seed), make_turns).Run();
    if (!outcome.errors.empty()) {
      ++totals.failed;
      ++totals.kinds[outcome.errors[0]];
      if (totals.first_error.empty()) totals.first_error = "seed " + std::to_string(seed) + ": " + outcome.errors[0];
    }
    totals.sums.turns += outcome.turns;
    totals.sums.withdrawn += outcome.withdrawn;
    totals.sums.evictions += outcome.evictions;
    totals.sums.stuck += outcome.stuck;
    totals.sums.crashes += outcome.crashes;
    totals.sums.hangs += outcome.hangs;
    totals.sums.breaks += outcome.breaks;
    totals.sums.absent += outcome.absent;
    totals.sums.looked_for_room += outcome.looked_for_room;
    totals.sums.turns_without_somebody += outcome.turns_without_somebody;
    totals.sums.arrivals += outcome.arrivals;
    totals.sums.lost_arrivals += outcome.lost_arrivals;
  }
  return totals;
}

std::string Describe(const Totals& totals) {
  std::string text = totals.first_error;
  for (const auto& [kind, times] : totals.kinds) text += "\n" + std::to_string(times) + " x " + kind;
  return text;
}

int64_t Count(const Totals& totals, const std::string& text) {
  int64_t count = 0;
  for (const auto& [kind, times] : totals.kinds) count += kind.find(text) == std::string::npos ? 0 : times;
  return count;
}

TEST(CardTurnsSimulationTest, ACardHasOneOwnerWhateverDiesHangsOrIsCutOff) {
  const Totals totals = SimulateMany(4000 / kOneRunIn, MakeTurnsWith<>());
  EXPECT_EQ(totals.failed, 0) << Describe(totals);
  EXPECT_GT(totals.sums.turns, 40000 / kOneRunIn);
  EXPECT_GT(totals.sums.withdrawn, 1000 / kOneRunIn);
  EXPECT_GT(totals.sums.evictions, 1000 / kOneRunIn);
  EXPECT_GT(totals.sums.stuck, 100 / kOneRunIn);
  EXPECT_GT(totals.sums.crashes, 2000 / kOneRunIn);
  EXPECT_GT(totals.sums.hangs, 2000 / kOneRunIn);
  EXPECT_GT(totals.sums.breaks, 10000 / kOneRunIn);
  EXPECT_GT(totals.sums.absent, 1000 / kOneRunIn);
  EXPECT_GT(totals.sums.looked_for_room, 1000 / kOneRunIn);
  EXPECT_GT(totals.sums.turns_without_somebody, 1000 / kOneRunIn);
  EXPECT_GT(totals.sums.arrivals, 1000 / kOneRunIn);
  EXPECT_GT(totals.sums.lost_arrivals, 300 / kOneRunIn);
}

struct ForgetsTheAbsent : CardTurns {
  using CardTurns::CardTurns;
  bool Holds(const Rollouter& rollouter) const override { return rollouter.on_card && rollouter.connected; }
};
struct TakesTheToldForGone : CardTurns {
  using CardTurns::CardTurns;
  bool Holds(const Rollouter& rollouter) const override { return rollouter.on_card && !rollouter.away; }
};
struct EvictsNobody : CardTurns {
  using CardTurns::CardTurns;
  bool IsStill(const Rollouter&, absl::Time) const override { return false; }
};
struct TrustsEvictions : CardTurns {
  using CardTurns::CardTurns;
  bool NeedsRoom() const override { return false; }
};
struct TellsNewcomersNothing : CardTurns {
  using CardTurns::CardTurns;
  bool TellsNewcomers() const override { return false; }
};
struct TakesArrivalsForNothing : CardTurns {
  using CardTurns::CardTurns;
  bool CountsArrivals() const override { return false; }
};
struct CountsNoBytes : CardTurns {
  using CardTurns::CardTurns;
  bool CountsBytes() const override { return false; }
};

TEST(CardTurnsSimulationTest, NoticesATurnBesideAnAbsentRollouter) {
  const Totals totals = SimulateMany(200, MakeTurnsWith<ForgetsTheAbsent>());
  EXPECT_GT(Count(totals, "is on the card"), 30) << Describe(totals);
}

TEST(CardTurnsSimulationTest, NoticesATurnBesideARollouterThatWasOnlyTold) {
  const Totals totals = SimulateMany(200, MakeTurnsWith<TakesTheToldForGone>());
  EXPECT_GT(Count(totals, "is on the card"), 30) << Describe(totals);
}

TEST(CardTurnsSimulationTest, NoticesAHungRollouterThatHoldsEverybodyUp) {
  const Totals totals = SimulateMany(300, MakeTurnsWith<EvictsNobody>());
  EXPECT_GT(totals.failed, 10) << Describe(totals);
}

TEST(CardTurnsSimulationTest, NoticesATurnOnACardThatHasNoRoom) {
  const Totals totals = SimulateMany(300, MakeTurnsWith<TrustsEvictions>());
  EXPECT_GT(Count(totals, "without room"), 30) << Describe(totals);
}

TEST(CardTurnsSimulationTest, NoticesANewcomerThatIsToldNothing) {
  const Totals totals = SimulateMany(200, MakeTurnsWith<TellsNewcomersNothing>());
  EXPECT_GT(totals.failed, 50) << Describe(totals);
}

TEST(CardTurnsSimulationTest, NoticesATurnBesideARollouterThatMakesItsEngine) {
  const Totals totals = SimulateMany(200, MakeTurnsWith<TakesArrivalsForNothing>());
  EXPECT_GT(Count(totals, "is on the card"), 30) << Describe(totals);
}

TEST(CardTurnsSimulationTest, NoticesTheEvictionOfASlowRollouter) {
  const Totals totals = SimulateMany(200, MakeTurnsWith<CountsNoBytes>());
  EXPECT_GT(Count(totals, "moves bytes is evicted"), 30) << Describe(totals);
}

}  // namespace
}  // namespace syncopate::trainer
