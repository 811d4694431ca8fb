#pragma once

#include <string>
#include <vector>

#include "syncopate/v1/config.pb.h"

namespace syncopate::config {

// A combination of values, each right by itself, that cannot work.
struct BrokenRule {
  std::vector<std::string> keys;  // the keys that take part, the likeliest cause first
  std::string expected;           // what the first key should be, and why
  bool together = false;          // `expected` describes all keys instead
};

// All broken rules, in the order of config.proto. Pure.
std::vector<BrokenRule> CheckRules(const v1::RunConfig& config);

// Whether the key describes a model's shape or random weights, which model.path replaces.
bool IsModelShapeKey(const std::string& path);

// The number of tokens of one prompt and one answer, special tokens included, and the vocabulary they need. With
// data.files: the longest prompt, one answer token and vocabulary 0, because nothing is known about the answers.
struct TaskShape {
  int64_t prompt_tokens = 0;
  int64_t answer_tokens = 0;
  int64_t vocabulary = 0;
};
TaskShape GetShape(const v1::DataSection& data);

// Whether every sample plays with an environment, turn by turn.
bool Plays(const v1::RunConfig& config);
// Whether the worker of users' Python is called over mutual TLS: it is at an address beyond loopback, and the run has
// certificates.
bool WorkerUsesTls(const v1::RunConfig& config);
// The addresses of environment.address; none: there is no worker yet.
std::vector<std::string> WorkerAddresses(const v1::RunConfig& config);
// The most tokens of an answer; of one with turns, given tokens counted.
int64_t LongestAnswer(const v1::RunConfig& config);

// Whether the run trains adapters and leaves its model as it is.
bool HasAdapters(const v1::RunConfig& config);

// The greatest number of updates that the whole run makes.
int64_t MakeUpdates(const v1::RunConfig& config);

// The number of rollouters that `syncopate run` starts: none if all steps are supervised.
int64_t GetRollouters(const v1::RunConfig& config);

}  // namespace syncopate::config
