#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "services/config/difference.h"
#include "syncopate/v1/config.pb.h"

// What a run remembers of its configuration, so that a resume with another one is noticed: <run.dir>/state/trainer/
// config.json, one JSON object from keys to values as YAML. The trainer writes it each time it has joined.
namespace syncopate::config {

// `run_id` is what run.id turned out to be. Errors of FileSystem.
absl::Status WriteConfigRecord(FileSystem* files, const std::string& run_dir, const v1::RunConfig& config,
                               const std::string& run_id);

// The keys whose values are not those with which the run in `run_dir` went on last; run.resume, which says nothing of
// the run, and an empty run.id are no change. Nothing where no run has begun. Changes nothing on the disk.
// `accept_reward_change`: the keys of IsRewardKey may change though they are fixed.
//   FAILED_PRECONDITION FIXED_KEY    a key that is fixed for the life of a run has changed; names each, with both
//   values DATA_LOSS           BAD_RECORD   the record is damaged and those of FileSystem
absl::StatusOr<std::vector<ConfigDifference>> CheckResume(FileSystem* files, const std::string& run_dir,
                                                          const v1::RunConfig& config,
                                                          bool accept_reward_change = false);

// Whether the key says what answers are worth, or who says it.
bool IsRewardKey(const std::string& path);

// Keys and values, as written, with which the run in `run_dir` went on last: those of the record, or before there is
// one, those of its resolved configuration. nullopt where no run has begun.
std::optional<std::map<std::string, std::string>> ReadKeptValues(FileSystem* files, const std::string& run_dir);

}  // namespace syncopate::config
