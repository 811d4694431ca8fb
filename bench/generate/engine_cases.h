#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "bench/generate/engine_world.h"

namespace syncopate::bench {

// Decode steps of `batch` sequences whose contexts have `context` tokens on average over the measurement; the median of
// `repeats` windows.
struct FixedCase {
  int32_t batch = 256;
  int32_t context = 1024;
  int repeats = 5;
  float top_p = 1;
  int32_t top_k = 0;
  bool profile = false;  // the line also has the kernels of one more step (ProfileOnce)
};
absl::StatusOr<nlohmann::json> MeasureFixed(EngineWorld& world, const FixedCase& fixed);

// The cost of an install beside `batch` decoding sequences: the wait for launched work, and the exchange, during which
// nothing runs; medians of `repeats`.
absl::StatusOr<nlohmann::json> MeasureInstall(EngineWorld& world, const FixedCase& fixed);

// 256 requests at once, with prompts and answers of 100 to 1024 tokens: answer tokens a second until all are done.
absl::StatusOr<nlohmann::json> MeasureMix(EngineWorld& world);

// 128 prompts of 18 tokens at once, with 8 answers of 17 tokens to each, as in the task reverse of length 16: answer
// tokens a second until all are done; the median of `repeats`.
absl::StatusOr<nlohmann::json> MeasureShort(EngineWorld& world, int repeats);

// `prompts` prompts of `tokens` tokens at once, until each has drawn a token; the median of `repeats`.
struct PrefillCase {
  int32_t prompts = 16;
  int32_t tokens = 1024;
  int repeats = 5;
  bool profile = false;  // the line also has the kernels of one more run (ProfileOnce)
};
absl::StatusOr<nlohmann::json> MeasurePrefill(EngineWorld& world, const PrefillCase& prefill);

// Sleep of level 1 (weights kept on the host) and 2 (dropped): the memory that the call reports as freed, the memory
// that the GPU then has more, the time of sleeping and waking up, and whether an answer is the same after the first.
// Nothing serves afterwards.
absl::StatusOr<nlohmann::json> MeasureSleep(EngineWorld& world);

// New sequences start as others end, `batch` at a time, without and with a weight sync each `every_seconds` for
// `seconds`: a copy into the shadow by a copy engine, from another GPU's memory if there is one, its check beside the
// decode steps, and an install. A borrowed shadow is taken before the copy and given back behind the install. Reports
// the remaining share of the tokens a second, the pauses, and what the lending moved.
struct SyncLoad {
  int32_t batch = 256;
  int32_t answer_tokens = 512;
  double seconds = 60;
  double every_seconds = 1;
};
absl::StatusOr<nlohmann::json> MeasureSyncs(EngineWorld& world, const SyncLoad& sync);

// Episodes of kTurns turns: 512 tokens are given to each turn and 256 are sampled. First `slots` episodes whose environment
// answers at once, then `episodes` of them whose environment takes 0.2 to 5 s (uniform), each for `seconds` after a warm-up.
// Reports tokens a second of both and their ratio.
constexpr int kTurns = 4;
constexpr int64_t kEpisodeTokens = int64_t{kTurns} * (512 + 256);
absl::StatusOr<nlohmann::json> MeasureTurns(EngineWorld& world, int32_t slots, int32_t episodes, double seconds);

}  // namespace syncopate::bench
