#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "services/config/rules.h"
#include "syncopate/v1/config.pb.h"

// Keys that nobody has to set: their values depend on the model, on the machine and on the run that is resumed. This is
// the one place where they get them; whoever reads a configuration finds it done.
namespace syncopate::config {

// What a configuration alone does not say.
struct Surroundings {
  int64_t longest_context = 0;  // of the model in model.path; 0: not known
  // Keys and values, as written, with which the run that is resumed went on last; nullopt: no run is resumed.
  std::optional<std::map<std::string, std::string>> kept = std::nullopt;
  // GPUs of this machine, on which all of the run's processes will be; nullopt: a device "auto" stays that, and each
  // process looks by itself.
  std::optional<int64_t> gpus = std::nullopt;
};
using LookAround = std::function<Surroundings(const v1::RunConfig& config)>;

// Gives every key that is left open its value: that of the run that is resumed, or the default that it was begun with
// if it did not know the key; else, with model.path, what trained models need (train.learning_rate 1e-6,
// rollout.max_new_tokens 1024 or what the prompt leaves of the context, devices "auto"), without it what built-in tasks
// need (2e-3, the task's answer, "cpu"). With `gpus` devices "auto" become "cuda" or "cpu", for trainer and rollouters
// together; broken is then the rule that the GPUs do not suffice, and "auto" stays. Returns the keys that got a value.
// Pure.
struct Resolved {
  std::vector<std::string> keys;
  std::optional<BrokenRule> broken = std::nullopt;
};
Resolved ResolveAutomatic(const Surroundings& around, v1::RunConfig* config);

// What the files say that the configuration names, and nothing else: model.path/config.json, and run.dir with
// run.resume. What cannot be read is not known here; who needs it says so. Blocks for as long as the disk does.
Surroundings LookAtFiles(FileSystem* files, const v1::RunConfig& config);

// What is allowed and mostly a mistake, a sentence each.
std::vector<std::string> FindDoubts(const v1::RunConfig& config);

}  // namespace syncopate::config
