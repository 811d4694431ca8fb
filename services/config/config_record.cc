#include "services/config/config_record.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "services/config/field_value.h"
#include "services/config/run_config.h"
#include "services/config/schema.h"
#include "services/config/settings.h"

namespace syncopate::config {
namespace {

constexpr int64_t kMaxBytes = 1 << 20;

std::string GetFolder(const std::string& run_dir) { return JoinPath(run_dir, "state/trainer"); }
std::string GetPath(const std::string& run_dir) { return JoinPath(GetFolder(run_dir), "config.json"); }
// A trainer writes this file before the record.
std::string GetIdentityPath(const std::string& run_dir) { return JoinPath(GetFolder(run_dir), "identity.json"); }

// The recorded value in this build's notation: an older build may have written the same number differently.
std::string InOurWords(const ConfigKey& key, const std::string& recorded, const v1::RunConfig& defaults) {
  v1::RunConfig config = defaults;
  const bool number = key.field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_STRING;
  return number && SetValue(key, recorded, &config) ? GetValue(key, config) : recorded;
}

// The defaults of all keys at the time when the run's files did not know them yet.
v1::RunConfig FormerDefaults(const ConfigSchema& schema) {
  v1::RunConfig defaults;
  SetDefaults(schema, &defaults);
  for (const ConfigKey& key : schema.keys()) {
    if (key.IsAutomatic()) SYNCOPATE_CHECK(SetValue(key, key.option.former_default(), &defaults));
  }
  return defaults;
}

bool IsChange(const ConfigKey& key, const std::string& before, const std::string& after) {
  if (key.path == "run.resume") return false;
  // The synchronizer and the worker of users' Python choose these values later.
  const bool left_open = (key.path == "run.id" || key.path == "environment.digest") && after == "\"\"";
  return before != after && !left_open;
}

}  // namespace

absl::Status WriteConfigRecord(FileSystem* files, const std::string& run_dir, const v1::RunConfig& config,
                               const std::string& run_id) {
  v1::RunConfig known = config;
  known.mutable_run()->set_id(run_id);
  const ConfigSchema schema;
  nlohmann::json record = nlohmann::json::object();
  for (const ConfigKey& key : schema.keys()) record[key.path] = GetValue(key, known);
  SYNCOPATE_RETURN_IF_ERROR(files->CreateDirs(GetFolder(run_dir)));
  return WriteFileAtomically(files, GetPath(run_dir), record.dump(2) + "\n");
}

absl::StatusOr<std::vector<ConfigDifference>> CheckResume(FileSystem* files, const std::string& run_dir,
                                                          const v1::RunConfig& config, bool accept_reward_change) {
  std::vector<ConfigDifference> changed;
  absl::StatusOr<std::string> text = ReadFile(files, GetPath(run_dir), kMaxBytes);
  if (absl::IsNotFound(text.status())) return changed;
  SYNCOPATE_RETURN_IF_ERROR(text.status());
  const nlohmann::json record = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object()) {
    return Error(absl::StatusCode::kDataLoss, "BAD_RECORD",
                 absl::StrCat(GetPath(run_dir), " is damaged; remove it to go on without knowing what has changed"));
  }
  const ConfigSchema schema;
  const v1::RunConfig defaults = FormerDefaults(schema);
  std::string refused;
  bool is_reward_alone = true;
  for (const ConfigKey& key : schema.keys()) {
    // A key that the run's older build did not have is taken to have its former default.
    auto found = record.find(key.path);
    const bool known = found != record.end() && found->is_string();
    ConfigDifference one{key.path,
                         known ? InOurWords(key, found->get<std::string>(), defaults) : GetValue(key, defaults),
                         GetValue(key, config)};
    if (!IsChange(key, one.before, one.after)) continue;
    const bool is_reward = IsRewardKey(key.path);
    if (key.option.fixed() && !(is_reward && accept_reward_change)) {
      absl::StrAppend(&refused, "\n  ", key.path, " = ", one.after, ": the run has ", one.before);
      is_reward_alone &= is_reward;
    }
    changed.push_back(std::move(one));
  }
  if (refused.empty()) return changed;
  return Error(
      absl::StatusCode::kFailedPrecondition, "FIXED_KEY",
      absl::StrCat("the run in ", run_dir, " was begun with other values, fixed for the whole run:", refused,
                   "\nresume it with its own values, or begin another run in another run.dir",
                   is_reward_alone ? "; or resume it with --accept-reward-change, to train on by another reward" : ""));
}

bool IsRewardKey(const std::string& path) {
  constexpr const char* kKeys[] = {"reward.name",
                                   "reward.pattern",
                                   "reward.format",
                                   "reward.overlong_buffer",
                                   "reward.undecided",
                                   "reward.math_judge",
                                   "reward.url",
                                   "environment.digest",
                                   "reward.judge_url",
                                   "reward.judge_model",
                                   "reward.judge_prompt",
                                   "reward.judge_pattern",
                                   "reward.judge_max_new_tokens",
                                   "reward.judge_temperature"};
  return std::any_of(std::begin(kKeys), std::end(kKeys), [&](const char* key) { return path == key; });
}

std::optional<std::map<std::string, std::string>> ReadKeptValues(FileSystem* files, const std::string& run_dir) {
  std::map<std::string, std::string> kept;
  const auto text = ReadFile(files, GetPath(run_dir), kMaxBytes);
  const nlohmann::json record = nlohmann::json::parse(text.value_or(""), nullptr, /*allow_exceptions=*/false);
  if (record.is_object()) {
    for (const auto& [key, value] : record.items()) {
      if (!value.is_string()) continue;
      // The record quotes texts as in YAML; those of keys that may be left open are valid JSON too.
      const auto plain = nlohmann::json::parse(value.get<std::string>(), nullptr, /*allow_exceptions=*/false);
      kept[key] = plain.is_string() ? plain.get<std::string>() : value.get<std::string>();
    }
    return kept;
  }
  const auto yaml = ReadFile(files, JoinPath(run_dir, kResolvedConfigFile), kMaxBytes);
  if (!yaml.ok() && !files->FileBytes(GetIdentityPath(run_dir)).ok()) return std::nullopt;
  for (const Setting& one : ParseYamlSettings(yaml.value_or(""), kResolvedConfigFile).settings) {
    kept[one.path] = one.value;
  }
  return kept;
}

}  // namespace syncopate::config
