#include "services/config/config_record.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "services/config/field_value.h"
#include "services/config/schema.h"

namespace syncopate::config {
namespace {

constexpr int64_t kMaxBytes = 1 << 20;

std::string FolderOf(const std::string& run_dir) { return JoinPath(run_dir, "state/trainer"); }
std::string PathOf(const std::string& run_dir) { return JoinPath(FolderOf(run_dir), "config.json"); }

bool IsChange(const ConfigKey& key, const std::string& before, const std::string& after) {
  if (key.path == "run.resume") return false;
  // The synchronizer, and the worker of users' Python, say it later.
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
  SYNCOPATE_RETURN_IF_ERROR(files->CreateDirs(FolderOf(run_dir)));
  return WriteFileAtomically(files, PathOf(run_dir), record.dump(2) + "\n");
}

absl::StatusOr<std::vector<ConfigDifference>> CheckResume(FileSystem* files, const std::string& run_dir,
                                                          const v1::RunConfig& config) {
  std::vector<ConfigDifference> changed;
  absl::StatusOr<std::string> text = ReadFile(files, PathOf(run_dir), kMaxBytes);
  if (absl::IsNotFound(text.status())) return changed;
  SYNCOPATE_RETURN_IF_ERROR(text.status());
  const nlohmann::json record = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object()) {
    return Error(absl::StatusCode::kDataLoss, "BAD_RECORD",
                 absl::StrCat(PathOf(run_dir), " is damaged; remove it to go on without knowing what has changed"));
  }
  const ConfigSchema schema;
  v1::RunConfig defaults;
  SetDefaults(schema, &defaults);
  std::string refused;
  for (const ConfigKey& key : schema.keys()) {
    // A key that the run's former version did not have was as its default is.
    auto found = record.find(key.path);
    const bool known = found != record.end() && found->is_string();
    ConfigDifference one{key.path, known ? found->get<std::string>() : GetValue(key, defaults), GetValue(key, config)};
    if (!IsChange(key, one.before, one.after)) continue;
    if (key.option.fixed()) absl::StrAppend(&refused, "\n  ", key.path, " = ", one.after, ": the run has ", one.before);
    changed.push_back(std::move(one));
  }
  if (refused.empty()) return changed;
  return Error(absl::StatusCode::kFailedPrecondition, "FIXED_KEY",
               absl::StrCat("the run in ", run_dir, " was begun with other values, fixed for its whole life:", refused,
                            "\nresume it with its own values, or begin another run in another run.dir"));
}

}  // namespace syncopate::config
