#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/config/automatic.h"
#include "services/config/problem.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::config {

// The exit code of every binary whose configuration is wrong, before anything was started.
inline constexpr int kConfigExitCode = 2;

struct ParsedRunConfig {
  v1::RunConfig config;                 // use it only if there are no problems
  std::vector<ConfigProblem> problems;  // in the order: file, overrides, combinations
  std::vector<std::string> automatic;   // keys that were left open and were given a value
};

// File names in the run directory: the configuration with which `syncopate run` starts every daemon. A resume is on
// trial under the second name until the trainer and the first rollouter are ready; then the file is renamed to the
// first name.
inline constexpr char kResolvedConfigFile[] = "config.resolved.yaml";
inline constexpr char kNextConfigFile[] = "config.next.yaml";

// Reads a YAML text of sections (`run:`, `model:`, ... as in config.proto), then "section.key=value" overrides, of
// which the last wins. A key that is not set has its default, or is resolved (automatic.h) from what `look` returns;
// without `look` nothing is known of the surroundings. Pure except for `look`: reads no file and no clock. `source`
// names the text in problems.
ParsedRunConfig ParseRunConfig(const std::string& yaml, const std::string& source,
                               const std::vector<std::string>& overrides = {}, const LookAround& look = nullptr);

// ParseRunConfig of a file, with LookAtFiles. `count_gpus`, if given, is called for Surroundings::gpus if a device may
// be "auto". If a file named kNextConfigFile does not exist, it has been renamed: kResolvedConfigFile beside it is
// read. NOT_FOUND or PERMISSION_DENIED (reason CONFIG_NOT_READABLE); INVALID_ARGUMENT (reason BAD_CONFIG) whose message
// lists all problems, one a line.
absl::StatusOr<v1::RunConfig> LoadRunConfig(const std::string& path, const std::vector<std::string>& overrides = {},
                                            const std::function<int64_t()>& count_gpus = nullptr);

enum class YamlComments { kNone, kDocs };

// The whole configuration as YAML, defaults included; ParseRunConfig of it gives an equal message. With kDocs a comment
// before each key says its meaning and its allowed values.
std::string ToYaml(const v1::RunConfig& config, YamlComments comments = YamlComments::kNone);

// staleness.target_staleness with -1 resolved to min(1, max_staleness).
double TargetStaleness(const v1::RunConfig& config);

// The number of leases that one rollouter has at once: rollout.max_groups_in_flight, where 0 means as many as fill
// max_sequences, or as many as leave endpoint.sequences of them free.
int64_t GroupsInFlight(const v1::RunConfig& config);

// The most samples of a rollouter that wait for their environment and occupy none of GroupsInFlight().
int64_t MaxParked(const v1::RunConfig& config);

}  // namespace syncopate::config
