#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "bench/train/train_arguments.h"

namespace syncopate::bench {

// Told as each line of a case is known.
using TellLine = std::function<void(const nlohmann::json& line)>;

// Runs one of TrainCases() on `device` and tells its lines: "case", "model", "tokens" (of a step), "ms" (median),
// "tokens_per_second", what is queued and reserved; "memory" tells a line at steps 5, 50 and the last, "offload" one
// for each way to keep the state, "save" the milliseconds of a copy of the state, and of the first. With several ranks
// ("policy" alone: else INVALID_ARGUMENT, reason BAD_CASE) "tokens" and "tokens_per_second" are of each rank, and there
// is what MeasureRankSteps() says. May throw c10::Error. Blocks for its duration.
absl::Status RunTrainCase(const std::string& name, const TrainArguments& arguments, const model::ModelConfig& shape,
                          at::Device device, const TellLine& tell);

}  // namespace syncopate::bench
