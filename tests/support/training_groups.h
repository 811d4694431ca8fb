#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/philox.h"
#include "base/trajectory.h"

namespace syncopate::testing {

// Draws a number below its bound, the next one of a stream.
using Draw = std::function<uint32_t(uint32_t bound)>;

// Groups of random prompts and answers of ragged lengths, with plausible log-probs. `complete` is called for each
// sample in order and adds what a test needs beside tokens (spans, rewards).
inline std::vector<TrajectoryGroup> RandomGroups(int32_t vocab_size, int groups, int samples, uint64_t seed,
                                                 const std::function<void(Trajectory&, const Draw&)>& complete) {
  std::vector<TrajectoryGroup> made(static_cast<size_t>(groups));
  uint64_t counter = 0;
  const Draw draw = [&](uint32_t bound) { return Philox4x32(seed, counter++)[0] % bound; };
  const auto vocab = static_cast<uint32_t>(vocab_size);
  for (int g = 0; g < groups; ++g) {
    TrajectoryGroup& group = made[static_cast<size_t>(g)];
    group.lease.group.ordinal = g;
    for (uint32_t i = 0, n = 2 + draw(5); i < n; ++i) group.prompt_ids.push_back(static_cast<int32_t>(draw(vocab)));
    for (int s = 0; s < samples; ++s) {
      Trajectory& sample = group.samples.emplace_back();
      for (uint32_t i = 0, n = 1 + draw(8); i < n; ++i) {
        sample.tokens.push_back(static_cast<int32_t>(draw(vocab)));
        sample.logprobs.push_back(-2.4f + 0.001f * static_cast<float>(draw(400)));
      }
      complete(sample, draw);
    }
  }
  return made;
}

inline std::vector<const TrajectoryGroup*> Pointers(const std::vector<TrajectoryGroup>& groups) {
  std::vector<const TrajectoryGroup*> pointers;
  for (const TrajectoryGroup& group : groups) pointers.push_back(&group);
  return pointers;
}

}  // namespace syncopate::testing
