#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "model/presets.h"

namespace syncopate::bench {

// Arguments that both the command and its program parse.
struct GenerateArguments {
  std::vector<std::string> models = {"qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b"};
  std::vector<int32_t> batches = {256, 512};
  std::vector<std::string> cases = {"prefill", "fixed", "install", "mix"};  // also "short", "sync", "turns", "sleep"
  int32_t context = 1024;
  int repeats = 5;
  float top_p = 1;
  int32_t top_k = 0;
  int64_t prefill_tokens = 0;
  double sync_seconds = 60;
  int32_t episodes = 1150;
  int64_t kv_tokens = 0;
  double turn_seconds = 40;
  bool deterministic = false;
  bool profile = false;
  int32_t tensor_parallel = 1;
  int64_t lora_rank = 0;
  std::string install = "remap";  // or "borrowed"
  double sync_every = 1;
  double host_kv_gib = 0;
  int32_t answer_tokens = 512;
};

inline void AddGenerateOptions(CLI::App* app, GenerateArguments* arguments) {
  app->add_option("--model", arguments->models, "Whose shapes, with commas between")
      ->delimiter(',')
      ->check(CLI::IsMember(model::PresetNames()))
      ->capture_default_str();
  app->add_option("--batch", arguments->batches, "Sequences that are decoded at once in the case fixed")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--case", arguments->cases, "What is measured")
      ->delimiter(',')
      ->check(CLI::IsMember({"prefill", "fixed", "install", "mix", "short", "sync", "turns", "sleep"}))
      ->capture_default_str();
  app->add_option("--context", arguments->context, "Tokens of a sequence in the cases prefill and fixed")
      ->check(CLI::Range(64, 32768))
      ->capture_default_str();
  app->add_option("--top-p", arguments->top_p, "Of the case fixed")
      ->check(CLI::Range(0.001, 1.0))
      ->capture_default_str();
  app->add_option("--top-k", arguments->top_k, "Of the case fixed")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app->add_option("--prefill-tokens", arguments->prefill_tokens,
                  "Prompt tokens of one step; 0: the engine's own choice")
      ->check(CLI::Range(0, 65536))
      ->capture_default_str();
  app->add_option("--sync-seconds", arguments->sync_seconds, "How long the case sync has a weight sync each second")
      ->check(CLI::Range(2.0, 600.0))
      ->capture_default_str();
  app->add_option("--install", arguments->install, "As sync.install")
      ->check(CLI::IsMember({"remap", "borrowed"}))
      ->capture_default_str();
  app->add_option("--sync-every", arguments->sync_every, "Of the case sync: seconds from one weight sync to the next")
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  app->add_option("--answer-tokens", arguments->answer_tokens,
                  "Of the case sync: tokens of an answer; prompts have 512")
      ->check(CLI::Range(16, 16384))
      ->capture_default_str();
  app->add_option("--host-kv-memory", arguments->host_kv_gib, "As rollout.host_kv_memory, in GiB")
      ->check(CLI::Range(0.0, 4096.0))
      ->capture_default_str();
  app->add_option("--episodes", arguments->episodes,
                  "Of the case turns: in flight while their environment takes its time")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app->add_option("--kv-tokens", arguments->kv_tokens,
                  "Tokens whose keys and values have room; 0: as many as all sequences that run at once may have")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app->add_option("--turn-seconds", arguments->turn_seconds,
                  "Of the case turns: what is measured, twice, after a warm-up")
      ->check(CLI::Range(1.0, 600.0))
      ->capture_default_str();
  app->add_option("--tensor-parallel", arguments->tensor_parallel,
                  "GPUs that share a model, each with a thread; for the cases prefill, fixed, install and mix")
      ->check(CLI::IsMember({1, 2, 4, 8}))
      ->capture_default_str();
  app->add_flag("--deterministic", arguments->deterministic, "As rollout.deterministic");
  app->add_flag("--profile", arguments->profile,
                "Of the cases prefill and fixed: also list the time of each kernel of one more run or step, by "
                "libtorch's profiler");
  app->add_option("--lora", arguments->lora_rank, "Rank of adapters on all projections; 0: none")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  app->add_option("--repeats", arguments->repeats, "Whose median is told")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
}

}  // namespace syncopate::bench
