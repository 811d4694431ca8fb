#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "services/config/rules.h"
#include "syncopate/v1/config.pb.h"

// Automatic keys: a user may leave them open, because their values depend on the model, on the machine and on the run
// that is resumed. Only this file computes those values; every reader of a configuration gets the computed values.
namespace syncopate::config {

// What an automatic key depends on besides the configuration.
struct Surroundings {
  int64_t longest_context = 0;  // of the model in model.path; 0: unknown
  // Keys and values, as written, of the resumed run's last configuration; nullopt: no run is resumed.
  std::optional<std::map<std::string, std::string>> kept = std::nullopt;
  // The number of GPUs of this machine, which runs all processes of the run; nullopt: a device "auto" stays "auto", and
  // each process looks for GPUs itself.
  std::optional<int64_t> gpus = std::nullopt;
};
using LookAround = std::function<Surroundings(const v1::RunConfig& config)>;

// Gives every automatic key that is left open a value. A resumed run keeps its value, or the former default if its
// files do not know the key. A new run with model.path gets what trained models need (train.learning_rate 1e-6,
// rollout.max_new_tokens 1024 or what the prompt leaves of the context, devices "auto"); without model.path it gets
// what built-in tasks need (2e-3, the task's answer, "cpu"). If `gpus` is known, devices "auto" become "cuda" or "cpu",
// for trainer and rollouters together; if the GPUs do not suffice, "auto" stays and `broken` is that rule. `keys` are
// the keys that got a value. Pure.
struct Resolved {
  std::vector<std::string> keys;
  std::optional<BrokenRule> broken = std::nullopt;
};
Resolved ResolveAutomatic(const Surroundings& around, v1::RunConfig* config);

// Reads only the files that the configuration names: model.path/config.json, and the files in run.dir with run.resume.
// A file that cannot be read leaves its value unknown and is no error here; the code that needs the file reports it.
// Blocks for as long as the disk does.
Surroundings LookAtFiles(FileSystem* files, const v1::RunConfig& config);

// Settings that are allowed but are usually a mistake, one sentence each.
std::vector<std::string> FindDoubts(const v1::RunConfig& config);

}  // namespace syncopate::config
