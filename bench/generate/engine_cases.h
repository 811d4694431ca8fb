#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "bench/generate/engine_world.h"

namespace syncopate::bench {

// Decode steps of `batch` sequences whose contexts are `context` tokens on average over what is measured; the median of
// `repeats` windows.
struct FixedCase {
  int32_t batch = 256;
  int32_t context = 1024;
  int repeats = 5;
  float top_p = 1;
  int32_t top_k = 0;
};
absl::StatusOr<nlohmann::json> MeasureFixed(EngineWorld& world, const FixedCase& fixed);

// What an install costs beside `batch` decoding sequences: waiting for what is launched, and the exchange, in which
// nothing runs; medians of `repeats`.
absl::StatusOr<nlohmann::json> MeasureInstall(EngineWorld& world, const FixedCase& fixed);

// 256 requests that come at once, prompts and answers of 100 to 1024 tokens: answers' tokens a second until all are done.
absl::StatusOr<nlohmann::json> MeasureMix(EngineWorld& world);

// 128 prompts of 18 tokens that come at once, 8 answers of 17 tokens to each, as in the task reverse of length 16: answers'
// tokens a second until all are done; the median of `repeats`.
absl::StatusOr<nlohmann::json> MeasureShort(EngineWorld& world, int repeats);

// `prompts` prompts of `tokens` tokens that come at once, until each has drawn a token; the median of `repeats`.
absl::StatusOr<nlohmann::json> MeasurePrefill(EngineWorld& world, int32_t prompts, int32_t tokens, int repeats);

// What a sleep of level 1 (weights kept on the host) and 2 (dropped) says that it gives back, what the GPU then has more, how
// long they and waking up take, and whether an answer is the same after the first. Nothing serves afterwards.
absl::StatusOr<nlohmann::json> MeasureSleep(EngineWorld& world);

// Sequences that come as others end, `batch` at a time, without and with a weight sync each second for `seconds`: a copy
// into the shadow by a copy engine, from another GPU's memory if there is one, its check beside the decode steps, and an
// install. What remains of the tokens a second, and the pauses.
absl::StatusOr<nlohmann::json> MeasureSyncs(EngineWorld& world, int32_t batch, double seconds);

}  // namespace syncopate::bench
