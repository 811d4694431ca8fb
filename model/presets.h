#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/model_config.h"

namespace syncopate::model {

// Shapes of published models, for uses without weights: benchmarks, tests, memory estimates. The numbers are those of
// each model's config.json on Hugging Face. "tiny" is a model of about 1 MB with the parts of Qwen2.5; "letters-25m" is
// one for the generated tasks, with the parts of a model that is made by shape keys.
std::vector<std::string> PresetNames();

// Finds a preset such as "qwen2.5-7b". NOT_FOUND (reason UNKNOWN_MODEL) listing the names.
absl::StatusOr<ModelConfig> FindPreset(const std::string& name);

}  // namespace syncopate::model
