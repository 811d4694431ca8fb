#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/unit/trainer/data/group_ledger_fixture.h"
#include "trainer/data/lease_dealer.h"

// The cost of one rollouter that is slow, or lies, to the run: in virtual time, without other faults.
namespace syncopate::trainer {
namespace {

struct Rates {
  double group_seconds = 0.1;  // usual time of a group
  double spread = 0.3;         // the deviation of its logarithm
  double step_seconds = 0.05;
  int64_t batch_groups = 8;
  int64_t capacity = 16;  // the number of groups that a rollouter works on at once
  double target_staleness = 1;
  int64_t max_staleness = 4;
};

struct Rollouter {
  // The time of a group at this time of the world: gets the usual time, returns the rollouter's own.
  std::function<double(double now, double usual)> takes = [](double, double usual) { return usual; };
};

// A trainer that steps as soon as it can, and rollouters that answer rightly, each at its own speed.
class Pace {
 public:
  struct Outcome {
    int64_t steps = 0;
    std::vector<int64_t> accepted = {};   // by rollouter
    std::vector<int64_t> most_held = {};  // leases at once, by rollouter, in the second half
    int64_t superseded = 0;
  };

  Pace(const Rates& rates, std::vector<Rollouter> rollouters) : rates_(rates), rollouters_(std::move(rollouters)) {
    GroupLedger::Options options = SmallLedger(rates.batch_groups, rates.max_staleness, rates.target_staleness);
    options.lease_limits = {.stall = absl::Minutes(10), .timeout = absl::Minutes(10)};
    ledger_ = std::make_unique<GroupLedger>(options, prompts_.get(), PolicyVersion{1, 0},
                                            RestoredData{.queue = PromptQueue({})}, Now());
    ledger_->OnPublished({1, 0});
    outcome_.accepted.resize(rollouters_.size());
    outcome_.most_held.resize(rollouters_.size());
    held_.resize(rollouters_.size());
    for (size_t r = 0; r < rollouters_.size(); ++r) {
      const MemberId member{.role = "rollouter", .replica_id = absl::StrCat("r", r), .incarnation = "a"};
      sessions_.push_back(ledger_->Connect(member).session);
    }
    SetServing();
  }

  Outcome Run(double seconds) {
    seconds_ = seconds;
    Pump();
    while (!events_.empty() && now_ < seconds) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      event.act();
      Pump();
    }
    outcome_.superseded = ledger_->counters().superseded;
    for (size_t r = 0; r < sessions_.size(); ++r)
      outcome_.accepted[r] = ledger_->sessions().Find(sessions_[r])->accepted;
    return outcome_;
  }

 private:
  struct Event {
    double time;
    int64_t order;
    std::function<void()> act;
    bool operator>(const Event& other) const { return std::tie(time, order) > std::tie(other.time, other.order); }
  };

  absl::Time Now() const { return absl::UnixEpoch() + absl::Seconds(now_); }
  void After(double delay, std::function<void()> act) { events_.push({now_ + delay, ++order_, std::move(act)}); }

  void SetServing() {
    for (size_t r = 0; r < sessions_.size(); ++r) {
      ledger_->OnServing(sessions_[r], ledger_->version());
      SetCredits(r);
    }
  }
  void SetCredits(size_t r) {
    ledger_->OnCredits(sessions_[r], static_cast<int32_t>(rates_.capacity - std::ssize(held_[r])));
  }

  void Pump() {
    for (const IssuedLease& issued : ledger_->NextLeases(Now())) {
      const size_t r = std::find(sessions_.begin(), sessions_.end(), issued.session) - sessions_.begin();
      held_[r].insert(issued.lease.id);
      if (now_ > seconds_ / 2) {
        outcome_.most_held[r] = std::max<int64_t>(outcome_.most_held[r], std::ssize(held_[r]));
      }
      const double usual = rates_.group_seconds * std::lognormal_distribution<double>(0, rates_.spread)(random_);
      After(rollouters_[r].takes(now_, usual), [this, r, lease = issued.lease] { Answer(r, lease); });
    }
    if (!waiting_ && !ledger_->in_step() && !ledger_->HasBatch()) Wait();
    if (!ledger_->TakeBatch().has_value()) return;
    ledger_->OnTakeLogged(0);
    After(rates_.step_seconds, [this] {
      ledger_->OnStepDone(Now());
      ledger_->OnPublished(ledger_->version());
      outcome_.steps = ledger_->version().step;
      SetServing();
    });
  }

  // TrainingData::AwaitBatch checks leases at this interval.
  void Wait() {
    waiting_ = true;
    After(0.1, [this] { waiting_ = false; });
  }

  // A superseded lease takes room until the rollouter learns of it: here, until its answer is made.
  void Answer(size_t r, const Lease& lease) {
    held_[r].erase(lease.id);
    const GroupLedger::Verdict verdict =
        ledger_->Submit(sessions_[r], Share(AnswerTo(lease, ledger_->sessions().Find(sessions_[r])->serving)), Now());
    if (verdict.record.has_value()) ledger_->OnLogged(lease.id, ++sequence_);
    SetCredits(r);
  }

  const Rates rates_;
  const std::vector<Rollouter> rollouters_;
  const std::unique_ptr<PromptSource> prompts_ = *MakeTask({});
  std::mt19937_64 random_{7};
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  double now_ = 0, seconds_ = 0;
  int64_t order_ = 0;
  uint64_t sequence_ = 0;
  std::unique_ptr<GroupLedger> ledger_;
  std::vector<SessionId> sessions_;
  std::vector<std::set<LeaseId>> held_;
  bool waiting_ = false;
  Outcome outcome_;
};

Rollouter Slow(double seconds) {
  return {.takes = [seconds](double, double) { return seconds; }};
}

// Runs whose steps follow each other at different speeds, with free capacity and without.
std::vector<Rates> ManyRates() {
  return {{},
          {.step_seconds = 0.02, .capacity = 32},
          {.group_seconds = 0.05, .step_seconds = 0.02, .batch_groups = 4, .capacity = 8},
          {.group_seconds = 0.5, .spread = 1, .step_seconds = 0.2, .batch_groups = 16, .capacity = 12},
          {.group_seconds = 0.1, .batch_groups = 4, .target_staleness = 0, .max_staleness = 0},
          {.group_seconds = 0.3, .step_seconds = 0.02, .batch_groups = 2, .capacity = 4, .max_staleness = 1},
          {.group_seconds = 0.1, .step_seconds = 0.05, .batch_groups = 16, .capacity = 4, .target_staleness = 4}};
}

TEST(SlowRollouterTest, OneOfTwoThatTakesEightSecondsCostsAFifthOfTheStepsAtMost) {
  if (SYNCOPATE_ONE_RUN_IN > 1) GTEST_SKIP() << "what something costs does not depend on a sanitizer";
  for (const Rates& rates : ManyRates()) {
    SCOPED_TRACE(absl::StrFormat("groups of %.2f s, steps of %.3f s, %d of %d", rates.group_seconds, rates.step_seconds,
                                 rates.batch_groups, rates.capacity));
    const Pace::Outcome alone = Pace(rates, {{}}).Run(60);
    // Before the first batch is accepted there is no measure of slow: the trainer waits for the first answers of the
    // slow rollouter.
    const int64_t begun = Pace(rates, {{}, Slow(8)}).Run(20).steps;
    const Pace::Outcome both = Pace(rates, {{}, Slow(8)}).Run(80);
    EXPECT_GE(static_cast<double>(both.steps - begun), 0.8 * static_cast<double>(alone.steps));
    EXPECT_LE(both.most_held[1], 1) << "a slow rollouter holds one group at a time";
    RecordProperty(absl::StrFormat("ratio_%g_%g", rates.group_seconds, rates.step_seconds),
                   absl::StrFormat("%.3f", static_cast<double>(both.steps) / static_cast<double>(alone.steps)));
  }
}

TEST(SlowRollouterTest, OneThatNeverAnswersCostsAFifthOfTheStepsAtMost) {
  if (SYNCOPATE_ONE_RUN_IN > 1) GTEST_SKIP() << "what something costs does not depend on a sanitizer";
  const Pace::Outcome alone = Pace({}, {{}}).Run(60), both = Pace({}, {{}, Slow(1e9)}).Run(60);
  EXPECT_GE(static_cast<double>(both.steps), 0.8 * static_cast<double>(alone.steps));
}

TEST(SlowRollouterTest, OneThatBecomesSlowLosesItsShareAndGetsItBackWhenItIsQuickAgain) {
  const Rollouter turns_slow{.takes = [](double now, double usual) { return now > 10 && now < 40 ? 8 : usual; }};
  const Rates rates{.batch_groups = 8, .capacity = 8};
  const Pace::Outcome before = Pace(rates, {{}, turns_slow}).Run(10);
  const Pace::Outcome during = Pace(rates, {{}, turns_slow}).Run(40);
  const Pace::Outcome after = Pace(rates, {{}, turns_slow}).Run(80);
  const Pace::Outcome alone = Pace(rates, {{}}).Run(30);
  EXPECT_GE(static_cast<double>(during.steps - before.steps), 0.8 * static_cast<double>(alone.steps));
  const int64_t quick = after.accepted[0] - during.accepted[0], healed = after.accepted[1] - during.accepted[1];
  // Up to ten of the 40 s pass until the rollouter is tried again.
  EXPECT_GT(static_cast<double>(healed), 0.5 * static_cast<double>(quick));
}

TEST(SlowRollouterTest, EqualRolloutersShareAndLongAnswersMakeNobodySlow) {
  const Rates rates{.spread = 1.5, .batch_groups = 16, .capacity = 16};
  const Pace::Outcome both = Pace(rates, {{}, {}}).Run(60);
  // The rollouter that has the longest answer gets fewer leases meanwhile.
  EXPECT_NEAR(static_cast<double>(both.accepted[0]) / static_cast<double>(both.accepted[1]), 1, 0.6);
  EXPECT_GT(both.most_held[0], 12);
  EXPECT_GT(both.most_held[1], 12);
}

TEST(SlowRollouterTest, OneOfHalfTheSpeedIsWorthItsHalf) {
  const Rollouter half{.takes = [](double, double usual) { return 2 * usual; }};
  const Rates rates{.step_seconds = 0.01, .batch_groups = 16, .capacity = 8, .target_staleness = 4};
  const Pace::Outcome alone = Pace(rates, {{}}).Run(30), both = Pace(rates, {{}, half}).Run(30);
  EXPECT_GE(static_cast<double>(both.steps), 1.4 * static_cast<double>(alone.steps));
}

TEST(SlowRollouterTest, ThoseThatAreAllSlowGetAllTheyHaveRoomFor) {
  const Rollouter turns_slow{.takes = [](double now, double usual) { return now > 10 ? 8 : usual; }};
  const Rates rates{.batch_groups = 8, .capacity = 16};
  const Pace::Outcome both = Pace(rates, {turns_slow, turns_slow}).Run(200);
  EXPECT_GE(both.most_held[0] + both.most_held[1], 12);
  const Pace::Outcome one = Pace(rates, {turns_slow}).Run(200);
  EXPECT_GE(one.most_held[0], 12);
}

class LeaseDealerTest : public ::testing::Test {
 protected:
  RolloutSession* Add(int64_t open, absl::Duration group_time) {
    RolloutSession& session = sessions_[static_cast<SessionId>(sessions_.size()) + 1];
    session.id = static_cast<SessionId>(sessions_.size());
    for (int64_t i = 0; i < open; ++i) session.pace.OnLeased(now_);
    if (group_time > absl::ZeroDuration()) session.pace.OnAccepted(group_time, std::nullopt, now_);
    candidates_.push_back({.session = &session, .can_take = true});
    return &session;
  }
  const RolloutSession* Choose() {
    return LeaseDealer{absl::Seconds(1), absl::Milliseconds(100), now_}.Choose(candidates_);
  }

  absl::Time now_ = absl::UnixEpoch();
  std::map<SessionId, RolloutSession> sessions_;
  std::vector<LeaseDealer::Candidate> candidates_;
};

TEST_F(LeaseDealerTest, CountsTheAgeOfTheOldestLeaseAsWellAsTheGroupTime) {
  RolloutSession* old = Add(1, absl::Milliseconds(10));
  now_ += absl::Milliseconds(500);
  RolloutSession* fresh = Add(3, absl::Milliseconds(100));
  EXPECT_EQ(Choose(), fresh) << "4 x 100 ms, against 2 x 500 ms";
  old->pace.OnEnded(now_ - absl::Milliseconds(500));
  EXPECT_EQ(Choose(), old);
}

TEST_F(LeaseDealerTest, WaitsForABusyOneRatherThanAskingASlowOneButNotForOneThatIsPaused) {
  RolloutSession* slow = Add(0, absl::Seconds(8));
  slow->pace.OnLeased(now_);
  slow->pace.OnEnded(now_);
  RolloutSession* busy = Add(1, absl::Milliseconds(100));
  candidates_[1].can_take = false;
  EXPECT_EQ(Choose(), nullptr);
  busy->pace.OnEnded(now_);
  EXPECT_EQ(Choose(), slow);
  slow->pace.OnLeased(now_);
  EXPECT_EQ(Choose(), nullptr) << "one group at a time";
  candidates_.pop_back();
  EXPECT_EQ(Choose(), slow) << "unless all are slow";
}

TEST_F(LeaseDealerTest, TriesASlowOneNowAndThen) {
  RolloutSession* slow = Add(0, absl::Seconds(8));
  slow->pace.OnLeased(now_);
  slow->pace.OnEnded(now_);
  RolloutSession* quick = Add(0, absl::Milliseconds(100));
  EXPECT_EQ(Choose(), quick);
  now_ += absl::Seconds(10);
  EXPECT_EQ(Choose(), slow);
  slow->pace.OnLeased(now_);
  EXPECT_EQ(Choose(), quick);
  slow->pace.OnEnded(now_);
  slow->pace.OnAccepted(absl::Milliseconds(90), absl::Seconds(1), now_);
  EXPECT_EQ(Choose(), slow) << "one quick answer clears it";
}

}  // namespace
}  // namespace syncopate::trainer
