#include "rollouter/engine/adapter_sets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <set>
#include <string>

namespace syncopate::rollouter {
namespace {

constexpr int32_t kNone = AdapterSets::kNone;

TEST(AdapterSetsTest, WithoutPinsAReceiverFindsAFreeSetAfterEachInstall) {
  AdapterSets sets;
  for (int i = 0; i < 10; ++i) {
    sets.BeginPlan();
    const int32_t shadow = sets.shadow(), live = sets.live();
    ASSERT_NE(shadow, kNone);
    ASSERT_NE(shadow, live);
    sets.Install();
    EXPECT_EQ(sets.live(), shadow);
    EXPECT_NE(sets.shadow(), live) << "the plan under way reads it";
    EXPECT_NE(sets.shadow(), kNone) << "the third set is free";
    sets.EndPlan();
  }
}

TEST(AdapterSetsTest, ASecondInstallWaitsForThePlansOfTheVersionsBefore) {
  AdapterSets sets;
  sets.BeginPlan();
  sets.Install();
  sets.BeginPlan();
  sets.Install();
  EXPECT_EQ(sets.shadow(), kNone);
  sets.EndPlan();
  EXPECT_EQ(sets.shadow(), 0);
}

TEST(AdapterSetsTest, WhatIsPinnedStaysThroughInstallsAndLaterPinsJoinIt) {
  AdapterSets sets;
  EXPECT_EQ(sets.Pin(), 0);
  for (int i = 0; i < 5; ++i) {
    ASSERT_NE(sets.shadow(), kNone) << "an evaluation delays no install";
    sets.Install();
    EXPECT_EQ(sets.Pin(), 0) << "an evaluation is answered by one version";
  }
  for (int i = 0; i < 5; ++i) sets.Unpin();
  EXPECT_EQ(sets.pinned(), 0);
  sets.Unpin();
  EXPECT_EQ(sets.pinned(), kNone);
  EXPECT_EQ(sets.Pin(), sets.live());
}

TEST(AdapterSetsTest, ThePlanOfAPinThatHasEndedKeepsItsSet) {
  AdapterSets sets;
  sets.Pin();
  sets.Install();
  sets.BeginPlan();  // names 0, which is pinned, and 1
  sets.Install();
  sets.Unpin();
  EXPECT_EQ(sets.shadow(), kNone);
  sets.EndPlan();
  EXPECT_NE(sets.shadow(), kNone);
}

// Random plans, pins and installs, and what they must leave alone. Returns what went wrong.
std::optional<std::string> Simulate(AdapterSets& sets, uint32_t seed) {
  std::mt19937 random(seed);
  struct Plan {
    std::set<int32_t> reads;
  };
  std::deque<Plan> plans;
  std::array<int64_t, AdapterSets::kSets> version = {1, 0, 0};  // what each set contains; the shadow's is being written
  int64_t newest = 1;
  int64_t pins = 0, pinned_version = 0;
  int32_t pinned_set = kNone;
  for (int step = 0; step < 2000; ++step) {
    switch (random() % 5) {
      case 0: {
        if (plans.size() >= 2) break;
        Plan plan{{sets.live()}};
        if (pins > 0) plan.reads.insert(pinned_set);
        plans.push_back(plan);
        sets.BeginPlan();
        break;
      }
      case 1:
        if (plans.empty()) break;
        plans.pop_front();
        sets.EndPlan();
        break;
      case 2: {
        const int32_t set = sets.Pin();
        if (pins++ == 0) {
          pinned_set = set;
          pinned_version = version[static_cast<size_t>(set)];
          if (set != sets.live()) return "a first pin is not of what is live";
        }
        if (set != pinned_set) return "a later pin is of another set";
        break;
      }
      case 3:
        if (pins == 0) break;
        --pins;
        sets.Unpin();
        break;
      default:
        if (sets.shadow() == kNone) break;
        version[static_cast<size_t>(sets.shadow())] = ++newest;
        sets.Install();
        if (version[static_cast<size_t>(sets.live())] != newest) return "what was installed is not live";
    }
    std::set<int32_t> read = {sets.live()};
    for (const Plan& plan : plans) read.insert(plan.reads.begin(), plan.reads.end());
    if (pins > 0) read.insert(pinned_set);
    if (read.count(sets.shadow()) > 0) return "the shadow is read";
    if (sets.shadow() == kNone && read.size() < AdapterSets::kSets) return "a free set does not receive";
    if (pins > 0 && version[static_cast<size_t>(pinned_set)] != pinned_version) return "a pinned set was overwritten";
  }
  return std::nullopt;
}

TEST(AdapterSetsTest, WhatPlansOrPinsReadIsNeverWrittenAndWhatNobodyReadsReceives) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    AdapterSets sets;
    const auto fault = Simulate(sets, seed);
    ASSERT_FALSE(fault.has_value()) << *fault << " (seed " << seed << ")";
  }
}

class ForgetsPlans final : public AdapterSets {
  bool IsNamed(int32_t set) const override { return set == live() || set == pinned(); }
};
class ForgetsPins final : public AdapterSets {
  bool IsNamed(int32_t set) const override { return set == live() || plans_naming(set) > 0; }
};
class ForgetsWhatIsLive final : public AdapterSets {
  bool IsNamed(int32_t set) const override { return set == pinned() || plans_naming(set) > 0; }
};
class KeepsWhatNobodyNames final : public AdapterSets {
  bool IsNamed(int32_t set) const override { return AdapterSets::IsNamed(set) || set == 2; }
};

TEST(AdapterSetsTest, TheSimulationNoticesEachRuleThatIsBroken) {
  ForgetsPlans plans;
  EXPECT_TRUE(Simulate(plans, 1).has_value());
  ForgetsPins pins;
  EXPECT_TRUE(Simulate(pins, 1).has_value());
  ForgetsWhatIsLive live;
  EXPECT_TRUE(Simulate(live, 1).has_value());
  KeepsWhatNobodyNames keeps;
  EXPECT_TRUE(Simulate(keeps, 1).has_value());
}

}  // namespace
}  // namespace syncopate::rollouter
