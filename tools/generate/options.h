#pragma once

#include <CLI/CLI.hpp>

#include "tools/generate/generator.h"

// The arguments of `syncopate generate`: the command line checks them and passes them to the program that links
// libtorch.
namespace syncopate::generate {

inline constexpr char kGenerateProgram[] = "syncopate-generate";
// Exit codes besides 0.
inline constexpr int kGenerateFailed = 1;
inline constexpr int kGenerateUsage = 2;

struct GenerateCommandLine {
  GenerateOptions options;
  std::string text;  // instead of options.prompt_ids
  bool plain = false;
  bool json = false;
};

inline void AddGenerateOptions(CLI::App* app, GenerateCommandLine* line) {
  GenerateOptions& options = line->options;
  app->footer(
      "Loads the model in float32 on the CPU and prints the new tokens with their log-probabilities, or for TEXT the "
      "answer's text; it ends "
      "with a token that generation_config.json or config.json names as the end. Exit codes: 0 done; 1 the model or "
      "the "
      "prompt is refused, with the reason; 2 wrong command line.");
  app->add_option("DIR", options.folder, "Hugging Face model directory")->type_name("DIR")->required();
  app->add_option("--adapter", options.adapter, "PEFT directory of adapters for it")->type_name("DIR");
  CLI::Option* text = app->add_option("TEXT", line->text,
                                      "What a user says: the model's chat template writes it down, if there is one");
  CLI::Option* ids =
      app->add_option("--ids", options.prompt_ids, "Token ids of the prompt instead, e.g. 1,2,3")->delimiter(',');
  ids->excludes(text);
  app->add_flag("--plain", line->plain, "TEXT stands as it is, without the chat template")->needs(text);
  app->add_option("--max-new-tokens", options.max_new_tokens, "Longest answer")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--temperature", options.temperature, "0 is greedy")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app->add_option("--seed", options.seed, "The same seed, prompt and model give the same tokens")
      ->capture_default_str();
  app->parse_complete_callback([ids, text] {
    if (ids->count() + text->count() == 0) throw CLI::RequiredError("TEXT or --ids");
  });
  app->add_flag("--json", line->json, "Print one line {\"ids\": [...], \"logprobs\": [...]}, with \"text\" for TEXT");
}

}  // namespace syncopate::generate
