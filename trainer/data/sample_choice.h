#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/trajectory.h"

namespace syncopate::trainer {

// Which groups have their samples written to samples.jsonl. A pure function of the group, so that a run that is resumed
// chooses the same ones, and every evaluation chooses the same prompts.
struct SampleChoice {
  double share = 0;  // of all groups, from 0 to 1
  uint64_t seed = 0;

  bool Takes(const GroupId& group) const {
    const uint64_t hash = HashCombine(GroupSeed(seed, group), /*value=*/0x5a3b1e);  // not the seed of its draws
    // The upper 53 bits are a number in [0, 1) without rounding.
    return static_cast<double>(hash >> 11) * 0x1p-53 < share;
  }
};

// What the lease of a group says of its prompt and its answers do not.
struct PromptOrigin {
  Task task = {};
  std::vector<int32_t> answer_ids = {};  // the right answer; empty if only the reward knows it
};

}  // namespace syncopate::trainer
