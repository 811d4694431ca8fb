#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/config/automatic.h"
#include "services/config/problem.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::config {

// What every binary returns when its configuration is wrong, before anything was started.
inline constexpr int kConfigExitCode = 2;

struct ParsedRunConfig {
  v1::RunConfig config;                 // to be used only if there are no problems
  std::vector<ConfigProblem> problems;  // all of them: file first, then overrides, then combinations
  std::vector<std::string> automatic;   // keys that were left open, and have a value all the same
};

// In the run directory: what every daemon of `syncopate run` is started with. A resume is on trial under the second
// name until trainer and first rollouter are ready; then the file is renamed to the first.
inline constexpr char kResolvedConfigFile[] = "config.resolved.yaml";
inline constexpr char kNextConfigFile[] = "config.next.yaml";

// Reads a YAML text of sections (`run:`, `model:`, ... as in config.proto), then "section.key=value" overrides, of
// which the last wins; everything not set has its default, or is resolved (automatic.h) by what `look` says; without it
// nothing is known. Pure but for `look`: no file, no clock. `source` names the text in problems.
ParsedRunConfig ParseRunConfig(const std::string& yaml, const std::string& source,
                               const std::vector<std::string>& overrides = {}, const LookAround& look = nullptr);

// ParseRunConfig of a file, with LookAtFiles. `count_gpus`, if it is given, is asked for Surroundings::gpus if a device
// may be "auto". A file of the name kNextConfigFile that is gone has been renamed: kResolvedConfigFile beside it is
// read. NOT_FOUND or PERMISSION_DENIED (reason CONFIG_NOT_READABLE); INVALID_ARGUMENT (reason BAD_CONFIG) whose message
// is all problems, a line each.
absl::StatusOr<v1::RunConfig> LoadRunConfig(const std::string& path, const std::vector<std::string>& overrides = {},
                                            const std::function<int64_t()>& count_gpus = nullptr);

enum class YamlComments { kNone, kDocs };

// The whole configuration as YAML, defaults included; ParseRunConfig of it gives an equal message. With kDocs each key
// follows a comment with its meaning and what it may be.
std::string ToYaml(const v1::RunConfig& config, YamlComments comments = YamlComments::kNone);

// staleness.target_staleness with -1 resolved to min(1, max_staleness).
double TargetStaleness(const v1::RunConfig& config);

// Leases one rollouter holds at once: rollout.max_groups_in_flight with 0 resolved to what fills max_sequences.
int64_t GroupsInFlight(const v1::RunConfig& config);

}  // namespace syncopate::config
