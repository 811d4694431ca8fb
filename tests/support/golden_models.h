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

// The files that scripts/golden_adapters.py has written: adapters for one of the models above.
inline constexpr const char* kGoldenAdapters[] = {"llama-all", "qwen2-rslora", "qwen3-pattern", "mistral-all"};

inline std::string GoldenPath(const std::string& name) {
  return JoinPath(JoinPath(SYNCOPATE_SOURCE_DIR, "tests/golden/models"), name);
}
inline std::string GoldenAdapterPath(const std::string& name) {
  return JoinPath(JoinPath(SYNCOPATE_SOURCE_DIR, "tests/golden/adapters"), name);
}
inline std::string GoldenModelPath(const std::string& name) { return JoinPath(GoldenPath(name), "model"); }

// The results that transformers computed with one model, or peft with the model's adapters.
struct Golden {
  std::unique_ptr<MappedFile> file;
  model::SafetensorsFile tensors;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<int32_t>> greedy;  // the continuation of each prompt
  std::string base;                          // for adapters: the case of their base model
};

inline Golden ReadGoldenFolder(const std::string& folder) {
  Golden golden;
  golden.file = MappedFile::Open(JoinPath(folder, "golden.safetensors")).value();
  golden.tensors = model::SafetensorsFile::Parse(golden.file->bytes()).value();
  const auto json = nlohmann::json::parse(model::ReadModelFile(JoinPath(folder, "golden.json"), 1 << 20).value());
  golden.base = json.value("base", "");
  golden.prompts = json["prompts"].get<std::vector<std::vector<int32_t>>>();
  golden.greedy = json["greedy"].get<std::vector<std::vector<int32_t>>>();
  return golden;
}
inline Golden ReadGolden(const std::string& name) { return ReadGoldenFolder(GoldenPath(name)); }

}  // namespace syncopate::testing
