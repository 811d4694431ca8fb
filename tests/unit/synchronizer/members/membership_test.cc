#include "synchronizer/members/membership.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "tests/support/synchronizer_fixtures.h"

namespace syncopate::synchronizer {
namespace {

using Kind = MemberChange::Kind;

class MembershipTest : public ::testing::Test {
 protected:
  static absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

  void Join(int index, SessionId session, double at, const std::string& incarnation = "a") {
    membership_.Join(session, HelloFor(RollouterId(index, incarnation), model_), At(at));
  }

  // Heartbeats of the given sessions each second up to `until`, with ticks whenever they are due.
  std::vector<MemberChange> Run(const std::vector<SessionId>& talking, double from, double until) {
    std::vector<MemberChange> all;
    for (double now = from; now <= until; now += 0.25) {
      for (SessionId session : talking) Collect(membership_.Heard(session, At(now)), all);
      if (membership_.NextDeadline() <= At(now)) Collect(membership_.Tick(At(now)), all);
    }
    return all;
  }

  static void Collect(std::vector<MemberChange> changes, std::vector<MemberChange>& all) {
    all.insert(all.end(), changes.begin(), changes.end());
  }

  static int64_t Count(const std::vector<MemberChange>& changes, Kind kind) {
    return std::count_if(changes.begin(), changes.end(), [kind](const MemberChange& c) { return c.kind == kind; });
  }

  std::shared_ptr<const Manifest> model_ = std::make_shared<Manifest>(SmallModel());
  Membership membership_{Membership::Options{}};
};

TEST_F(MembershipTest, SuspectsAfterThreeSecondsAndDeclaresDeadAfterFive) {
  Join(0, 1, 0);
  EXPECT_EQ(membership_.NextDeadline(), At(3));
  auto suspected = membership_.Tick(At(3));
  ASSERT_EQ(suspected.size(), 1u);
  EXPECT_EQ(suspected[0].kind, Kind::kSuspected);
  EXPECT_EQ(membership_.NextDeadline(), At(5));
  auto dead = membership_.Tick(At(5));
  ASSERT_EQ(dead.size(), 1u);
  EXPECT_EQ(dead[0].kind, Kind::kDead);
  EXPECT_EQ(dead[0].reason, "DECLARED_DEAD");
  EXPECT_EQ(dead[0].closed, 1);
  EXPECT_EQ(membership_.NextDeadline(), At(65)) << "when the member is no longer listed";
  EXPECT_TRUE(membership_.Tick(At(65)).empty());
  EXPECT_TRUE(membership_.members().empty());
  EXPECT_EQ(membership_.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(MembershipTest, ASuspectThatIsHeardIsAliveAgain) {
  Join(0, 1, 0);
  membership_.Tick(At(3));
  auto changes = membership_.Heard(1, At(4));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].kind, Kind::kRecovered);
  EXPECT_TRUE(membership_.Tick(At(6)).empty());
}

TEST_F(MembershipTest, ABrokenStreamIsNotADeathUntilTheSilenceIs) {
  Join(0, 1, 0);
  membership_.Disconnected(1, At(1));
  EXPECT_EQ(membership_.Find(SessionId{1}), nullptr);
  EXPECT_EQ(Count(membership_.Tick(At(4)), Kind::kDead), 0);
  EXPECT_EQ(Count(membership_.Tick(At(5)), Kind::kDead), 1);
}

TEST_F(MembershipTest, TheSameIncarnationComesBackOnANewStreamAndTheOldOneNoLongerCounts) {
  Join(0, 1, 0);
  auto changes = membership_.Join(2, HelloFor(RollouterId(0, "a"), model_), At(1));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].kind, Kind::kRejoined);
  EXPECT_EQ(changes[0].closed, 1);
  membership_.Disconnected(1, At(1.5));
  ASSERT_NE(membership_.Find(SessionId{2}), nullptr);
  EXPECT_TRUE(membership_.Find(SessionId{2})->Reachable());
}

TEST_F(MembershipTest, ANewIncarnationReplacesTheOldOneWhichMayNotReturn) {
  Join(0, 1, 0);
  auto changes = membership_.Join(2, HelloFor(RollouterId(0, "b"), model_), At(1));
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].reason, "REPLACED");
  EXPECT_EQ(changes[0].closed, 1);
  EXPECT_EQ(changes[1].kind, Kind::kJoined);
  EXPECT_THAT(membership_.CheckMayJoin(RollouterId(0, "a")), HasReason("REPLACED"));
  EXPECT_TRUE(membership_.CheckMayJoin(RollouterId(0, "b")).ok());
}

TEST_F(MembershipTest, AnEvictedIncarnationMayNotReturnButANewProcessMay) {
  Join(0, 1, 0);
  auto changes = membership_.Evict(GetKey(RollouterId(0, "a")), "EVICTED", "asked for", At(1));
  ASSERT_TRUE(changes.ok());
  ASSERT_EQ(changes->size(), 1u);
  EXPECT_EQ(changes->front().closed, 1);
  EXPECT_THAT(membership_.CheckMayJoin(RollouterId(0, "a")), HasReason("EVICTED"));
  EXPECT_TRUE(membership_.CheckMayJoin(RollouterId(0, "b")).ok());
  EXPECT_THAT(membership_.Evict(GetKey(RollouterId(7, "a")), "EVICTED", "", At(1)).status(),
              HasReason("UNKNOWN_MEMBER"));
}

TEST_F(MembershipTest, OneThatWasDeclaredDeadMayReturnWithTheSameIncarnation) {
  Join(0, 1, 0);
  membership_.Tick(At(3));
  membership_.Tick(At(5));
  EXPECT_TRUE(membership_.CheckMayJoin(RollouterId(0, "a")).ok());
  auto changes = membership_.Join(2, HelloFor(RollouterId(0, "a"), model_), At(8));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].kind, Kind::kJoined);
}

TEST_F(MembershipTest, OfThousandsThatVanishAFewAreListedForAMinute) {
  constexpr int kVanishing = 2000;
  Join(0, 1, 0);
  for (int i = 1; i <= kVanishing; ++i) Join(i, i + 1, 0);
  auto changes = Run({1}, 0.25, 40);  // most of them are silent at once, so none is declared dead for half a minute
  EXPECT_EQ(Count(changes, Kind::kDead), kVanishing);
  EXPECT_LE(membership_.members().size(), 1u + 64u);
  Run({1}, 40.25, 100);
  EXPECT_EQ(membership_.members().size(), 1u);
}

TEST_F(MembershipTest, AMemberThatIsListedNoMoreIsStillReplacedByItsSuccessor) {
  Join(0, 1, 0);
  Join(1, 2, 0);
  auto changes = Run({2}, 0.25, 120);
  EXPECT_EQ(Count(changes, Kind::kDead), 1);
  ASSERT_EQ(membership_.Find(GetKey(RollouterId(0, "a"))), nullptr);
  EXPECT_TRUE(membership_.CheckMayJoin(RollouterId(0, "a")).ok());
  membership_.Join(3, HelloFor(RollouterId(0, "b"), model_), At(121));
  EXPECT_THAT(membership_.CheckMayJoin(RollouterId(0, "a")), HasReason("REPLACED"))
      << "the process may only have been stopped";
}

TEST_F(MembershipTest, OneThatWasEvictedStaysOutWhenItIsListedNoMore) {
  Join(0, 1, 0);
  Join(1, 2, 0);
  ASSERT_TRUE(membership_.Evict(GetKey(RollouterId(0, "a")), "EVICTED", "asked for", At(1)).ok());
  Run({2}, 1.25, 120);
  EXPECT_EQ(membership_.members().size(), 1u);
  EXPECT_THAT(membership_.CheckMayJoin(RollouterId(0, "a")), HasReason("EVICTED"));
  Join(2, 3, 120);
  ASSERT_TRUE(membership_.Leave(3, "drained", At(121)).size() == 1);
  Run({2}, 121.25, 200);
  ASSERT_TRUE(membership_.Evict(GetKey(RollouterId(2, "a")), "EVICTED", "asked for", At(201)).ok());
  EXPECT_THAT(membership_.CheckMayJoin(RollouterId(2, "a")), HasReason("EVICTED"));
}

TEST_F(MembershipTest, OneThatLeftIsNotCountedAsDead) {
  Join(0, 1, 0);
  auto changes = membership_.Leave(1, "drained", At(1));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].kind, Kind::kLeft);
  EXPECT_TRUE(membership_.Tick(At(9)).empty());
  EXPECT_EQ(membership_.Find(GetKey(RollouterId(0, "a")))->state, MemberState::kLeft);
}

TEST_F(MembershipTest, RefusesMalformedIdentities) {
  for (const MemberId& bad :
       {MemberId{"boss", "x", 0, 1, "a"}, MemberId{kRollouterRole, "", 0, 1, "a"},
        MemberId{kRollouterRole, "x", 1, 1, "a"}, MemberId{kRollouterRole, "x", -1, 1, "a"},
        MemberId{kRollouterRole, "x", 0, 1, ""}, MemberId{kRollouterRole, "x", 0, 1 << 20, "a"},
        MemberId{kRollouterRole, std::string(129, 'x'), 0, 1, "a"}, MemberId{kRollouterRole, "x\ny", 0, 1, "a"},
        MemberId{kRollouterRole, "../x", 0, 1, "a"}}) {
    EXPECT_THAT(membership_.CheckMayJoin(bad), HasReason("BAD_MEMBER"));
  }
}

TEST_F(MembershipTest, HoldsDeathsBackWhileMostOfFourRolloutersAreSilent) {
  for (int i = 0; i < 4; ++i) Join(i, i + 1, 0.25 * i);
  auto changes = Run({1}, 1, 20);
  EXPECT_EQ(Count(changes, Kind::kDeathsPostponed), 1);
  EXPECT_EQ(Count(changes, Kind::kDead), 0);
  EXPECT_TRUE(membership_.postpones_deaths());
  // Two sessions come back: the silent ones are no longer the majority, so the one that stays silent dies at once.
  changes = Run({1, 2, 3}, 20.25, 22);
  EXPECT_EQ(Count(changes, Kind::kDeathsResumed), 1);
  ASSERT_EQ(Count(changes, Kind::kDead), 1);
  EXPECT_EQ(membership_.Find(GetKey(RollouterId(3, "a")))->state, MemberState::kDead);
}

TEST_F(MembershipTest, TheHoldEndsAfterItsTimeAndTheSilentAreDeclaredDead) {
  for (int i = 0; i < 4; ++i) Join(i, i + 1, 0);
  auto changes = Run({1}, 0.25, 40);
  EXPECT_EQ(Count(changes, Kind::kDeathsPostponed), 1);
  EXPECT_EQ(Count(changes, Kind::kDeathsResumed), 1);
  EXPECT_EQ(Count(changes, Kind::kDead), 3);
  EXPECT_FALSE(membership_.postpones_deaths());
}

TEST_F(MembershipTest, DoesNotHoldWithFewerThanFourRollouters) {
  for (int i = 0; i < 3; ++i) Join(i, i + 1, 0);
  auto changes = Run({1}, 0.25, 6);
  EXPECT_EQ(Count(changes, Kind::kDeathsPostponed), 0);
  EXPECT_EQ(Count(changes, Kind::kDead), 2);
}

TEST_F(MembershipTest, ItsOwnAbsenceIsNotHeldAgainstTheMembers) {
  Join(0, 1, 0);
  membership_.Heard(1, At(1));
  // The process was stopped for half a minute; its first event is the overdue tick.
  EXPECT_TRUE(membership_.Tick(At(31)).empty());
  EXPECT_EQ(membership_.Find(SessionId{1})->state, MemberState::kAlive);
  EXPECT_EQ(Count(Run({}, 31.25, 40), Kind::kDead), 1);
}

TEST_F(MembershipTest, OptionsMustBeInOrder) {
  Membership::Options options;
  EXPECT_TRUE(options.Validate().ok());
  options.suspect_after = options.dead_after;
  EXPECT_THAT(options.Validate(), HasReason("BAD_OPTIONS"));
}

}  // namespace
}  // namespace syncopate::synchronizer
