#pragma once

#include <cstdint>

#include "rollouter/engine/step_plan.h"

namespace syncopate::rollouter {

// The limits and modes of a runner.
struct RunnerOptions {
  int64_t max_sequences = 256;
  int64_t max_prefill_tokens = 4096;
  int64_t max_context = 0;      // tokens of one sequence, at most the model's limit
  int64_t blocks = 0;           // blocks for keys and values; 0: the runner chooses
  int64_t host_blocks = 0;      // blocks for swapping; a runner that cannot swap ignores it
  int32_t plans_under_way = 0;  // 0: the runner chooses; it may take fewer
  // True: the bits of a token and its log-probability depend only on the tokens before it, the weights, the seed and
  // the sampling. They do not depend on the other sequences of its batch, on the chunks of its prompt, on a found
  // prefix, or on preemption. They are the same in every process on one kind of device.
  bool deterministic = false;

  // The number of blocks with which max_sequences sequences of max_context tokens have room, so that no request waits
  // for another's blocks.
  int64_t BlocksForAll() const {
    return max_sequences * ((max_context + kBlockTokens - 1) / kBlockTokens) + (max_sequences + 1) / 2;
  }
};

}  // namespace syncopate::rollouter
