#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/config/problem.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::config {

// What every binary returns when its configuration is wrong, before anything was started.
inline constexpr int kConfigExitCode = 2;

struct ParsedRunConfig {
  v1::RunConfig config;                 // to be used only if there are no problems
  std::vector<ConfigProblem> problems;  // all of them: file first, then overrides, then combinations
};

// Reads a YAML text of sections (`run:`, `model:`, ... as in config.proto), then "section.key=value" overrides, of
// which the last wins; everything not set has its default. Pure: no file, no clock. `source` names the text in
// problems.
ParsedRunConfig ParseRunConfig(const std::string& yaml, const std::string& source,
                               const std::vector<std::string>& overrides = {});

// ParseRunConfig of a file. NOT_FOUND or PERMISSION_DENIED (reason CONFIG_NOT_READABLE); INVALID_ARGUMENT (reason
// BAD_CONFIG) whose message is all problems, a line each.
absl::StatusOr<v1::RunConfig> LoadRunConfig(const std::string& path, const std::vector<std::string>& overrides = {});

enum class YamlComments { kNone, kDocs };

// The whole configuration as YAML, defaults included; ParseRunConfig of it gives an equal message. With kDocs each key
// follows a comment with its meaning and what it may be.
std::string ToYaml(const v1::RunConfig& config, YamlComments comments = YamlComments::kNone);

// staleness.target_staleness with -1 resolved to min(1, max_staleness).
double TargetStaleness(const v1::RunConfig& config);

// Leases one rollouter holds at once: rollout.max_groups_in_flight with 0 resolved to what fills max_sequences.
int64_t GroupsInFlight(const v1::RunConfig& config);

}  // namespace syncopate::config
