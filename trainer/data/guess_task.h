#pragma once

#include <memory>

#include "trainer/data/prompts.h"

namespace syncopate::trainer {

// The built-in task `guess`, which is played with the environment of that name: every prompt is the same two tokens,
// and its number is the row's ground_truth, which the environment alone reads. The number of prompt (seed, pass,
// ordinal) comes from Philox with key H(seed, pass) and counter `ordinal`. base/guess_tokens.h has the tokens.
std::unique_ptr<PromptSource> MakeGuessTask(uint64_t seed);

}  // namespace syncopate::trainer
