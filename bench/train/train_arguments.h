#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/model_config.h"

namespace syncopate::bench {

// The arguments of `syncopate bench train`: parsed by the command line, which passes them to syncopate-bench-train, the
// program that does the work.
struct TrainArguments {
  std::vector<std::string> cases;  // of TrainCases(); empty: policy, program and logprobs
  std::string model = "qwen2.5-0.5b";
  int64_t layers = 0;      // of the model; 0: all
  int64_t vocabulary = 0;  // tokens; 0: the model's
  std::string device = "auto";
  int64_t ranks = 1;  // number of ranks that share the policy
  int64_t tokens = 16384;
  int64_t longest = 4096;
  bool ragged = false;
  bool float32_logits = false;
  int64_t lora_rank = 0;                 // of adapters on all projections, which alone are trained; 0: none
  bool deterministic = false;            // each case a second time, with train.deterministic
  std::string reduce_dtype = "float32";  // of gradients between ranks
  std::string recompute = "selective";
  int steps = 12;
  double warm_seconds = 8;
  int memory_steps = 200;
  int64_t micro_batch_tokens = 0;  // tokens in one forward and backward pass; 0: `tokens`
  std::string empty_cache = "never";
  std::string variant;  // of the case offload: a part of its name; "": all
  std::string allocator;
  bool profile = false;  // the case policy also says which kernels its time goes to
  bool json = false;
};

// "policy", "program", "logprobs", "memory", "offload", "save", "stage", "export".
const std::vector<std::string>& TrainCases();

// Adds the options, which write to `arguments`; it must outlive the parsing.
void AddTrainOptions(CLI::App* app, TrainArguments* arguments);
// The command-line words from which another process parses the same arguments.
std::vector<std::string> ToWords(const TrainArguments& arguments);

// The shape to train, with positions for the longest sequence. NOT_FOUND of model::FindPreset; INVALID_ARGUMENT (reason
// BAD_CASE) if it has fewer layers than requested.
absl::StatusOr<model::ModelConfig> GetShape(const TrainArguments& arguments);

}  // namespace syncopate::bench
