// The built-in environment `guess`: a number is to be found by higher and lower. It needs no tool and no data, so
// simulations and tests of learning play it. The best play needs 135/32 = 4.22 guesses on average.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/guess_tokens.h"
#include "rollouter/environment/environment.h"

namespace syncopate::rollouter {

inline constexpr int32_t kGuessNumbers = guess_tokens::kNumbers;  // the number is from 1 to this
inline constexpr float kWrongGuess = -0.1f;                       // the reward of an action that is not the number

// What `guess` says and reads, in the tokens of the built-in task. Numbers that are written are separated by blanks;
// ids of no number are left out.
std::string RenderGuess(const std::vector<int32_t>& tokens);
std::vector<int32_t> EncodeGuess(const std::string& text);

// INVALID_ARGUMENT (reason BAD_ROW) if the row's ground_truth is no number from 1 to kGuessNumbers.
absl::StatusOr<std::unique_ptr<EnvironmentGame>> MakeGuess(const std::string& row_json);

}  // namespace syncopate::rollouter
