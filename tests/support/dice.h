#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

namespace syncopate::testing {

// Random choices that are repeatable; --gtest_random_seed=N gives other choices.
class Dice {
 public:
  explicit Dice(uint64_t seed) : generator_(seed + 1000 * static_cast<uint64_t>(GTEST_FLAG_GET(random_seed))) {}
  int64_t Between(int64_t low, int64_t high) {  // both bounds included
    return low + static_cast<int64_t>(generator_() % static_cast<uint64_t>(high - low + 1));
  }

 private:
  std::mt19937_64 generator_;
};

}  // namespace syncopate::testing
