#pragma once

#include <CLI/CLI.hpp>

#include "tools/generate/generator.h"

// What `syncopate generate` is told: the command line checks it, and hands it on to the program that links libtorch.
namespace syncopate::generate {

inline constexpr char kGenerateProgram[] = "syncopate-generate";
// Exit codes beside 0.
inline constexpr int kGenerateFailed = 1;
inline constexpr int kGenerateUsage = 2;

struct GenerateCommandLine {
  GenerateOptions options;
  bool json = false;
};

inline void AddGenerateOptions(CLI::App* app, GenerateCommandLine* line) {
  GenerateOptions& options = line->options;
  app->footer(
      "Loads the model in float32 on the CPU and prints the new tokens with their log-probabilities; the answer ends "
      "with a token that generation_config.json or config.json names as the end. Exit codes: 0 done; 1 the model or "
      "the "
      "prompt is refused, with the reason; 2 wrong command line.");
  app->add_option("DIR", options.folder, "Hugging Face model directory")->type_name("DIR")->required();
  app->add_option("--ids", options.prompt_ids, "Token ids of the prompt, e.g. 1,2,3")->delimiter(',')->required();
  app->add_option("--max-new-tokens", options.max_new_tokens, "Longest answer")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--temperature", options.temperature, "0 is greedy")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app->add_option("--seed", options.seed, "The same seed, prompt and model give the same tokens")
      ->capture_default_str();
  app->add_flag("--json", line->json, "Print one line {\"ids\": [...], \"logprobs\": [...]}");
}

}  // namespace syncopate::generate
