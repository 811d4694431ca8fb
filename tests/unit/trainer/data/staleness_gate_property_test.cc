// The deadline gate under random load: rollouters that lag behind, groups that fail or are filtered, a trainer that is
// restored. Each of the gate's two checks is left out in turn, to show that this test would detect it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <vector>

#include "trainer/data/staleness_gate.h"

namespace syncopate::trainer {
namespace {

struct WithoutTestAtTake : StalenessGate {
  using StalenessGate::StalenessGate;
  bool KeepsBoundAtTake(const Deadlines&) const override { return true; }
};

struct WithoutTestAtAdmission : StalenessGate {
  using StalenessGate::StalenessGate;
  bool KeepsBoundAtAdmission(const Deadlines&) const override { return true; }
};

using MakeGate = std::function<std::unique_ptr<StalenessGate>(const StalenessGate::Options&)>;

template <typename Gate>
MakeGate Make() {
  return [](const StalenessGate::Options& options) { return std::make_unique<Gate>(options); };
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t Int(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }
  double Uniform() { return std::uniform_real_distribution<double>(0, 1)(engine_); }
  double LogNormal(double sigma) { return std::lognormal_distribution<double>(0, sigma)(engine_); }
  double Exponential(double mean) { return mean == 0 ? 0 : std::exponential_distribution<double>(1 / mean)(engine_); }
  template <typename T>
  T Choice(std::initializer_list<T> values) {
    return *(values.begin() + Int(0, static_cast<int64_t>(values.size()) - 1));
  }

 private:
  std::mt19937_64 engine_;
};

struct Outcome {
  bool deadlock = false;
  int64_t worst = 0;  // the greatest staleness of a trained group
  int64_t bound = 0;
};

// One random configuration over 120 steps of virtual time.
class Simulation {
 public:
  Simulation(uint64_t seed, const MakeGate& make_gate) : random_(seed) {
    options_.max_staleness = random_.Int(0, 8);
    options_.target_staleness = static_cast<double>(random_.Int(0, 2 * options_.max_staleness)) / 2;
    options_.batch_groups = random_.Choice<int64_t>({1, 2, 4, 8, 16});
    serving_.assign(random_.Choice({1, 2, 4, 8}), 0);
    capacity_ = random_.Choice({1, 2, 4, 8});
    sigma_ = random_.Choice({0.3, 1.0, 1.5});
    lag_ = random_.Choice({0.0, 0.1, 0.5, 2.0});
    step_time_ = random_.Choice({0.02, 0.25, 1.0});
    failures_ = random_.Choice({0.0, 0.1, 0.3});
    kept_ = random_.Choice({1.0, 0.9, 0.5});
    running_.assign(serving_.size(), 0);
    gate_ = make_gate(options_);
  }

  Outcome Run() {
    FillRollouters();
    while (steps_ < 120) {
      if (events_.empty()) return {.deadlock = true};
      Event event = events_.top();
      events_.pop();
      now_ = event.time;
      event.act();
      TakeBatch();
      FillRollouters();
    }
    return {.worst = worst_, .bound = options_.max_staleness};
  }

 private:
  struct Event {
    double time;
    int64_t order;
    std::function<void()> act;
    bool operator>(const Event& other) const { return std::tie(time, order) > std::tie(other.time, other.order); }
  };

  void After(double delay, std::function<void()> act) { events_.push({now_ + delay, ++order_, std::move(act)}); }

  void FillRollouters() {
    for (size_t r = 0; r < serving_.size(); ++r) {
      while (running_[r] < capacity_ && gate_->MayAdmit(serving_[r])) {
        GroupId group{0, next_++};
        gate_->Admit(group, serving_[r]);
        starts_[group] = serving_[r];
        ++running_[r];
        After(std::min(random_.LogNormal(sigma_), 20.0), [this, group, r] { FinishGroup(group, r); });
      }
    }
  }

  void FinishGroup(const GroupId& group, size_t rollouter) {
    --running_[rollouter];
    if (random_.Uniform() < failures_ || random_.Uniform() >= kept_) {
      gate_->Release(group);
      starts_.erase(group);
    } else {
      gate_->Complete(group);
    }
  }

  void TakeBatch() {
    std::vector<GroupId> batch = gate_->Pick();
    if (batch.empty()) return;
    for (const GroupId& group : batch) {
      worst_ = std::max(worst_, gate_->step() - starts_.at(group));
      starts_.erase(group);
    }
    gate_->BeginStep(batch);
    After(step_time_, [this] { EndStep(); });
  }

  void EndStep() {
    gate_->EndStep();
    ++steps_;
    for (size_t r = 0; r < serving_.size(); ++r) {
      After(random_.Exponential(lag_),
            [this, r, version = gate_->step()] { serving_[r] = std::max(serving_[r], version); });
    }
  }

  Random random_;
  StalenessGate::Options options_;
  std::unique_ptr<StalenessGate> gate_;
  std::vector<int64_t> serving_;  // the version that each rollouter serves
  std::vector<int64_t> running_;  // the number of groups on each rollouter
  int64_t capacity_ = 0;
  double sigma_ = 0, lag_ = 0, step_time_ = 0, failures_ = 0, kept_ = 0;

  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::map<GroupId, int64_t> starts_;  // the events that the gate got, kept apart from the gate
  double now_ = 0;
  int64_t order_ = 0, next_ = 0, steps_ = 0, worst_ = 0;
};

struct Totals {
  int violations = 0;
  int deadlocks = 0;
  int bound_reached = 0;
};

Totals RunMany(int runs, const MakeGate& make_gate) {
  Totals totals;
  for (int seed = 0; seed < runs; ++seed) {
    Outcome outcome = Simulation(seed, make_gate).Run();
    totals.deadlocks += outcome.deadlock;
    totals.violations += !outcome.deadlock && outcome.worst > outcome.bound;
    totals.bound_reached += !outcome.deadlock && outcome.worst == outcome.bound;
  }
  return totals;
}

TEST(StalenessGatePropertyTest, NeverPassesTheBoundAndNeverDeadlocks) {
  Totals totals = RunMany(600, Make<StalenessGate>());
  EXPECT_EQ(totals.violations, 0);
  EXPECT_EQ(totals.deadlocks, 0);
  EXPECT_GT(totals.bound_reached, 300) << "the load hardly strains the gate";
}

TEST(StalenessGatePropertyTest, NoticesThatTheTestAtTakeIsMissing) {
  Totals totals = RunMany(600, Make<WithoutTestAtTake>());
  EXPECT_GT(totals.violations + totals.deadlocks, 100);
  EXPECT_GT(totals.violations, 20);
}

TEST(StalenessGatePropertyTest, NoticesThatTheTestAtAdmissionIsMissing) {
  Totals totals = RunMany(600, Make<WithoutTestAtAdmission>());
  EXPECT_GT(totals.violations + totals.deadlocks, 50);
}

}  // namespace
}  // namespace syncopate::trainer
