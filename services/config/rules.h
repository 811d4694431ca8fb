#pragma once

#include <string>
#include <vector>

#include "syncopate/v1/config.pb.h"

namespace syncopate::config {

// A combination of values, each right by itself, that cannot work.
struct BrokenRule {
  std::vector<std::string> keys;  // that take part, the likeliest culprit first
  std::string expected;           // what the first of them should be, and why
  bool together = false;          // `expected` speaks of all of them instead
};

// All broken rules, in the order of config.proto. Pure.
std::vector<BrokenRule> CheckRules(const v1::RunConfig& config);

// Whether the key describes a model's shape or random weights: what model.path says instead.
bool IsModelShapeKey(const std::string& path);

// Tokens of one prompt and one answer, special tokens included, and the vocabulary they need. With data.files: the
// longest prompt, and what is known of answers, which is nothing.
struct TaskShape {
  int64_t prompt_tokens = 0;
  int64_t answer_tokens = 0;
  int64_t vocabulary = 0;
};
TaskShape ShapeOf(const v1::DataSection& data);

// How many updates the whole run makes at most.
int64_t UpdatesOf(const v1::RunConfig& config);

// How many rollouters `syncopate run` starts: none for supervised steps alone.
int64_t RolloutersOf(const v1::RunConfig& config);

}  // namespace syncopate::config
