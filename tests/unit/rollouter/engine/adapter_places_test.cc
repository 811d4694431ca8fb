#include "rollouter/engine/adapter_places.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "rollouter/engine/adapter_sets.h"

namespace syncopate::rollouter {
namespace {

using Copy = AdapterPlaces::Copy;

std::vector<std::pair<int32_t, int32_t>> Pairs(const std::vector<Copy>& copies) {
  std::vector<std::pair<int32_t, int32_t>> pairs;
  for (const Copy& copy : copies) pairs.emplace_back(copy.set, copy.place);
  return pairs;
}
using PairList = std::vector<std::pair<int32_t, int32_t>>;

TEST(AdapterPlacesTest, ASetIsCopiedBeforeTheFirstPlanThatNeedsItAndNotAgain) {
  AdapterPlaces places;
  EXPECT_EQ(Pairs(places.BeginPlan(0, {0, 0}, {1, 0, 0})), (PairList{{0, 0}}));
  EXPECT_TRUE(places.BeginPlan(0, {0}, {1, 0, 0}).empty());
  EXPECT_EQ(Pairs(places.BeginPlan(1, {1, 0, 1}, {1, 1, 0})), (PairList{{1, 0}, {0, 1}}))
      << "the set that was live is pinned now";
  EXPECT_TRUE(places.BeginPlan(1, {0, 1}, {1, 1, 0}).empty());
}

TEST(AdapterPlacesTest, APlanThatNeedsNoSetCopiesNone) {
  AdapterPlaces places;
  EXPECT_TRUE(places.BeginPlan(0, {}, {1, 0, 0}).empty());
  EXPECT_EQ(Pairs(places.BeginPlan(0, {0}, {1, 0, 0})), (PairList{{0, 0}}));
}

TEST(AdapterPlacesTest, ASetWithOtherContentsIsCopiedAgainThoughItsNumberIsTheSame) {
  AdapterPlaces places;
  places.BeginPlan(0, {0}, {1, 0, 0});
  EXPECT_EQ(Pairs(places.BeginPlan(0, {0}, {2, 0, 0})), (PairList{{0, 0}}));
}

// Random installs, pins, sleeps and plans over a memory of places. Returns what a plan would have computed with wrongly.
std::optional<std::string> Simulate(AdapterPlaces& places, uint32_t seed) {
  std::mt19937 random(seed);
  AdapterSets sets;
  std::array<int64_t, AdapterPlaces::kSets> version = {1, 0, 0};  // what each set contains
  std::array<int64_t, AdapterPlaces::kPlaces> memory = {};        // the version that lies in each place; 0: none
  AdapterPlaces::Contents contents = {1, 0, 0};
  int64_t newest = 1;
  int32_t pins = 0;
  for (int step = 0; step < 2000; ++step) {
    switch (random() % 6) {
      case 0:  // a sleep: the memory of the places is another one
        if (random() % 8 > 0) break;
        memory.fill(0);
        for (int64_t& number : contents) ++number;
        break;
      case 1:
        sets.Pin();
        ++pins;
        break;
      case 2:
        if (pins == 0) break;
        sets.Unpin();
        --pins;
        break;
      case 3: {
        if (sets.shadow() == AdapterSets::kNone) break;
        const auto shadow = static_cast<size_t>(sets.shadow());
        version[shadow] = ++newest;
        ++contents[shadow];
        sets.Install();
        break;
      }
      default: {
        std::vector<int32_t> rows;
        for (uint32_t row = random() % 4; row > 0; --row) {
          rows.push_back(pins > 0 && random() % 2 == 0 ? sets.pinned() : sets.live());
        }
        sets.BeginPlan();
        for (const Copy& copy : places.BeginPlan(sets.live(), rows, contents)) {
          memory[static_cast<size_t>(copy.place)] = version[static_cast<size_t>(copy.set)];
        }
        for (const int32_t set : rows) {
          const int32_t place = AdapterPlaces::GetPlace(set, sets.live());
          if (memory[static_cast<size_t>(place)] != version[static_cast<size_t>(set)])
            return "a row has another version";
        }
        sets.EndPlan();
      }
    }
  }
  return std::nullopt;
}

TEST(AdapterPlacesTest, EveryRowFindsTheVersionOfItsSetInItsPlace) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    AdapterPlaces places;
    const auto fault = Simulate(places, seed);
    ASSERT_FALSE(fault.has_value()) << *fault << " (seed " << seed << ")";
  }
}

class LooksAtNumbersAlone final : public AdapterPlaces {
  bool Lies(const Placed& placed, int32_t set, int64_t) const override { return placed.set == set; }
};
class LooksAtContentsAlone final : public AdapterPlaces {
  bool Lies(const Placed& placed, int32_t, int64_t contents) const override { return placed.contents == contents; }
};

TEST(AdapterPlacesTest, TheSimulationNoticesEachRuleThatIsBroken) {
  LooksAtNumbersAlone numbers;
  EXPECT_TRUE(Simulate(numbers, 1).has_value());
  LooksAtContentsAlone contents;
  EXPECT_TRUE(Simulate(contents, 1).has_value());
}

}  // namespace
}  // namespace syncopate::rollouter
