#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "bench/train/train_arguments.h"

namespace syncopate::bench {

// Called with each line of a case when it is complete.
using TellLine = std::function<void(const nlohmann::json& line)>;

// Runs one of TrainCases() on `device` and reports its lines: "case", "model", "deterministic", "tokens" (of a step),
// "ms" (median), "tokens_per_second", queueing time and reserved memory. "memory" reports a line at steps 5, 50 and the
// last, "offload" one for each placement of the state, "save" the milliseconds of a copy of the state, and of the first
// copy, "stage" and "export" what bench/train/beside_steps.h says.
// With several ranks (only "policy", else INVALID_ARGUMENT, reason BAD_CASE) "tokens" and "tokens_per_second" are per
// rank, and the figures of MeasureRankSteps() are added. May throw c10::Error. Blocks until the case has ended.
absl::Status RunTrainCase(const std::string& name, const TrainArguments& arguments, const model::ModelConfig& shape,
                          at::Device device, const TellLine& tell);

}  // namespace syncopate::bench
