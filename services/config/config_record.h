#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "services/config/difference.h"
#include "syncopate/v1/config.pb.h"

// The record of a run's configuration, which lets a resume detect changes: <run.dir>/state/trainer/config.json, one
// JSON object from keys to values as YAML. The trainer writes it each time it has joined.
namespace syncopate::config {

// `run_id` is the run's id, also if run.id was left empty. Errors of FileSystem.
absl::Status WriteConfigRecord(FileSystem* files, const std::string& run_dir, const v1::RunConfig& config,
                               const std::string& run_id);

// The keys whose values differ from the record of the run in `run_dir`. run.resume, which says nothing about the run,
// and an empty run.id are no change. Empty if no run has begun. Changes nothing on the disk. `accept_reward_change`:
// the keys of IsRewardKey may change although they are fixed. Errors of FileSystem, and:
//   FAILED_PRECONDITION FIXED_KEY    a key that is fixed for a whole run has changed; names each, with both values
//   DATA_LOSS           BAD_RECORD   the record is damaged
absl::StatusOr<std::vector<ConfigDifference>> CheckResume(FileSystem* files, const std::string& run_dir,
                                                          const v1::RunConfig& config,
                                                          bool accept_reward_change = false);

// Whether the key decides the reward of an answer, or names the process that computes it.
bool IsRewardKey(const std::string& path);

// Keys and values, as written, of the last configuration of the run in `run_dir`: from the record, or, before there is
// one, from its resolved configuration. nullopt if no run has begun.
std::optional<std::map<std::string, std::string>> ReadKeptValues(FileSystem* files, const std::string& run_dir);

}  // namespace syncopate::config
