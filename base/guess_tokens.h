#pragma once

#include <cstdint>

// The token ids of the built-in task `guess`, which has no tokenizer. The trainer makes its prompts, and rollouters
// play its environment, so both know them.
namespace syncopate::guess_tokens {

// Id i < kNumbers is the number i + 1.
inline constexpr int32_t kNumbers = 32;
inline constexpr int32_t kBegin = kNumbers;       // begins the prompt
inline constexpr int32_t kAsk = kNumbers + 1;     // ends the prompt and each answer of the environment
inline constexpr int32_t kEnd = kNumbers + 2;     // ends a turn of the policy
inline constexpr int32_t kHigher = kNumbers + 3;  // the environment's answers
inline constexpr int32_t kLower = kNumbers + 4;
inline constexpr int32_t kNoNumber = kNumbers + 5;
inline constexpr int32_t kVocabulary = kNumbers + 6;

inline constexpr int64_t kPromptTokens = 2;  // kBegin, kAsk
inline constexpr int64_t kTurnTokens = 2;    // a number, kEnd

}  // namespace syncopate::guess_tokens
