#pragma once

#include <cstdint>

#include "rollouter/engine/step_plan.h"

namespace syncopate::rollouter {

// What a runner is made for.
struct RunnerOptions {
  int64_t max_sequences = 256;
  int64_t max_prefill_tokens = 4096;
  int64_t max_context = 0;      // tokens of one sequence, at most the model's
  int64_t blocks = 0;           // for keys and values; 0: the runner chooses
  int64_t host_blocks = 0;      // to swap to; a runner that cannot swap has none
  int32_t plans_under_way = 0;  // 0: the runner chooses; it may take fewer
  // The bits of a token and its log-probability depend on the tokens before it, the weights, the seed and the sampling
  // alone: not on who shares its batch, on how its prompt is cut, on whether a prefix was found, or on whether it made
  // room and was computed again. The same in every process on one kind of device.
  bool deterministic = false;

  // So many that max_sequences sequences of max_context tokens have room, and no request waits for another's blocks.
  int64_t BlocksForAll() const {
    return max_sequences * ((max_context + kBlockTokens - 1) / kBlockTokens) + (max_sequences + 1) / 2;
  }
};

}  // namespace syncopate::rollouter
