#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include "ranks/thread_ranks.h"
#include "trainer/actor/actor.h"
#include "trainer/actor/sharded_units.h"

// Trainer ranks as threads of a test process.
namespace syncopate::testing {

// Returns the result of `body` on each of `world` ranks, in rank order. A rank whose body has returned is gone for the
// other ranks.
template <typename Result>
std::vector<Result> OnRanks(int32_t world, const std::function<Result(Communicator&)>& body) {
  auto ranks = MakeThreadRanks(world, absl::Seconds(60));
  std::vector<Result> results(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back(
        [&body, &results, communicator = std::move(ranks[rank]), rank] { results[rank] = body(*communicator); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// Gathers the arena of all ranks without padding; every rank calls it.
inline std::vector<float> GatherArena(trainer::Actor& actor, const at::Tensor& arena, Communicator& ranks) {
  std::vector<float> whole;
  for (int unit = 0; unit < actor.shards().units(); ++unit) {
    const auto numbers = trainer::GatherUnit(actor.shards(), unit, arena, ranks);
    EXPECT_TRUE(numbers.ok()) << numbers.status();
    if (!numbers.ok()) return {};
    const float* const first = numbers->data_ptr<float>();
    whole.insert(whole.end(), first, first + actor.shards().unit(unit).count);
  }
  return whole;
}

inline std::vector<float> GatherGradient(trainer::Actor& actor, Communicator& ranks) {
  const auto gradients = actor.gradients();
  return GatherArena(actor, at::from_blob(gradients.data(), {static_cast<int64_t>(gradients.size())}, at::kFloat),
                     ranks);
}

// The largest difference of two tensors, in units of the largest element of `b`.
inline double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0, scale = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(double{a[i]} - b[i]));
    scale = std::max(scale, std::abs(double{b[i]}));
  }
  EXPECT_GT(scale, 0);
  return largest / scale;
}

}  // namespace syncopate::testing
