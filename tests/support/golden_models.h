#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/mapped_file.h"
#include "model/model_folder.h"
#include "model/safetensors.h"

// The files that scripts/golden_models.py has written.
namespace syncopate::testing {

inline constexpr const char* kGoldenCases[] = {
    "llama3-tied",    "llama-biases",   "llama-plain",       "llama-linear", "qwen2-tied",
    "qwen2-full",     "qwen3-tied",     "qwen3-yarn",        "mistral",      "qwen3-yarn-factors",
    "mistral-window", "mistral-slides", "qwen3-layer-types", "qwen3-moe",    "qwen3-moe-steps"};

inline std::string GoldenPath(const std::string& name) {
  return JoinPath(JoinPath(SYNCOPATE_SOURCE_DIR, "tests/golden/models"), name);
}
inline std::string GoldenModelPath(const std::string& name) { return JoinPath(GoldenPath(name), "model"); }

// What transformers computed with one model.
struct Golden {
  std::unique_ptr<MappedFile> file;
  model::SafetensorsFile tensors;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<int32_t>> greedy;  // continuation of each prompt
};

inline Golden ReadGolden(const std::string& name) {
  Golden golden;
  golden.file = MappedFile::Open(JoinPath(GoldenPath(name), "golden.safetensors")).value();
  golden.tensors = model::SafetensorsFile::Parse(golden.file->bytes()).value();
  const auto json =
      nlohmann::json::parse(model::ReadModelFile(JoinPath(GoldenPath(name), "golden.json"), 1 << 20).value());
  golden.prompts = json["prompts"].get<std::vector<std::vector<int32_t>>>();
  golden.greedy = json["greedy"].get<std::vector<std::vector<int32_t>>>();
  return golden;
}

}  // namespace syncopate::testing
