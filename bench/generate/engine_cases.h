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

// `prompts` prompts of `tokens` tokens that come at once, until each has drawn a token; the median of `repeats`.
absl::StatusOr<nlohmann::json> MeasurePrefill(EngineWorld& world, int32_t prompts, int32_t tokens, int repeats);

}  // namespace syncopate::bench
