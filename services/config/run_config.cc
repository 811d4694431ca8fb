#include "services/config/run_config.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "services/config/field_value.h"
#include "services/config/peer_names.h"
#include "services/config/rules.h"
#include "services/config/schema.h"
#include "services/config/settings.h"

namespace syncopate::config {
namespace {

// Applies settings one by one and remembers the origin of each value.
class Applier {
 public:
  explicit Applier(ParsedRunConfig* result) : result_(result) { SetDefaults(schema_, &result_->config); }

  void ApplyFile(const ParsedSettings& parsed) {
    Append(parsed.problems);
    std::set<std::string> seen;
    for (const Setting& setting : parsed.settings) {
      if (!seen.insert(setting.path).second) {
        Report(setting, absl::StrCat("each key once; it is set at ", origins_[setting.path].where, " already"));
      } else {
        Apply(setting);
      }
    }
  }

  void ApplyOverrides(const ParsedSettings& parsed) {
    Append(parsed.problems);
    for (const Setting& setting : parsed.settings) Apply(setting);
  }

  // This check is here and not in the rules, because only this class knows which keys were set.
  void RefuseShapeBesidePath() {
    if (result_->config.model().path().empty()) return;
    for (const auto& [path, setting] : origins_) {
      if (schema_.Find(path) != nullptr && IsModelShapeKey(path)) {
        Report(setting, "to be left out, as model.path says it");
      }
    }
  }

  void Resolve(const LookAround& look) {
    Resolved resolved = ResolveAutomatic(look == nullptr ? Surroundings() : look(result_->config), &result_->config);
    result_->automatic = std::move(resolved.keys);
    if (resolved.broken.has_value()) ReportRule(*resolved.broken);
  }

  void ApplyRules() {
    for (const BrokenRule& broken : CheckRules(result_->config)) ReportRule(broken);
  }

 private:
  // Reports a rule only if all of its keys have right values themselves.
  void ReportRule(const BrokenRule& broken) {
    bool known_wrong = std::any_of(broken.keys.begin(), broken.keys.end(),
                                   [this](const std::string& key) { return wrong_.count(key) > 0; });
    if (!known_wrong) result_->problems.push_back(Describe(broken));
  }

  void Append(const std::vector<ConfigProblem>& problems) {
    result_->problems.insert(result_->problems.end(), problems.begin(), problems.end());
  }

  void Apply(const Setting& setting) {
    // For a section that does not exist, the keys in it are reported, at any depth.
    if (!setting.inner.empty() && schema_.Find(setting.path) == nullptr && !schema_.HasSection(setting.path)) {
      for (const Setting& inner : setting.inner) Apply(inner);
      return;
    }
    origins_[setting.path] = setting;
    if (schema_.HasSection(setting.path)) {
      // `train:` with nothing below it sets nothing; any other value should have been a map.
      if (setting.kind != Setting::Kind::kNull) Report(setting, "keys below this section");
      return;
    }
    const ConfigKey* key = schema_.Find(setting.path);
    if (key == nullptr) {
      ReportUnknown(setting);
    } else if (!Fits(setting, *key) || !SetValue(*key, ValueFor(setting, *key), &result_->config)) {
      wrong_.insert(setting.path);
      Report(setting, absl::StrCat(key->Expected(), LimitOfNumbers(setting.value, *key)));
    } else {
      wrong_.erase(setting.path);
    }
  }

  static bool Fits(const Setting& setting, const ConfigKey& key) {
    if (setting.kind == Setting::Kind::kList) return key.option.list();
    const bool text = key.field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_STRING;
    const bool word = text || (key.option.zero_is_auto() && setting.value == "auto");
    return setting.kind == Setting::Kind::kPlain || (setting.kind == Setting::Kind::kQuoted && word);
  }

  // A list on the command line means the same as in a file.
  static std::string ValueFor(const Setting& setting, const ConfigKey& key) {
    const bool list = key.option.list() && setting.where == kCommandLine;
    return list ? JoinFlowList(setting.value).value_or(setting.value) : setting.value;
  }

  void ReportUnknown(const Setting& setting) {
    const std::string nearest = schema_.Nearest(setting.path);
    // A misspelt key in one of our own sections is taken as a slip: train.beta means train.beta1, not another program's
    // beta.
    const std::string section = setting.path.substr(0, setting.path.find('.') + 1);
    const bool slip = !section.empty() && absl::StartsWith(nearest, section);
    const std::string translated = slip ? "" : TranslatePeerKey(setting.path);
    Report(setting, "a known key", translated.empty() ? nearest : "");
    result_->problems.back().translated = translated;
  }

  // The upper limit of the number type, for a number that is too large for a key without an upper bound.
  static std::string LimitOfNumbers(const std::string& text, const ConfigKey& key) {
    using google::protobuf::FieldDescriptor;
    double value = 0;
    if (key.option.has_max() || !absl::SimpleAtod(text, &value)) return "";
    if (key.field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE && std::isinf(value)) return ", at most 1.79e308";
    const bool too_large = value >= static_cast<double>(std::numeric_limits<int64_t>::max());
    if (key.field->cpp_type() != FieldDescriptor::CPPTYPE_INT64 || !too_large) return "";
    return absl::StrCat(", at most ", std::numeric_limits<int64_t>::max());
  }

  void Report(const Setting& setting, const std::string& expected, const std::string& nearest = "") {
    std::string value = setting.value;
    if (setting.kind == Setting::Kind::kNull) value = "(nothing)";
    if (setting.kind == Setting::Kind::kList) value = "a list";
    if (setting.kind == Setting::Kind::kQuoted) value = absl::StrCat("\"", value, "\"");
    result_->problems.push_back({setting.where, setting.path, value, expected, nearest});
  }

  // A broken rule is reported at the first of its keys that the command line set, else the file, else the defaults. The
  // expected value is the rule's first key's, so that key is named if another one is reported.
  ConfigProblem Describe(const BrokenRule& broken) const {
    std::string blamed = broken.keys.front();
    int best = Rank(blamed);
    for (const std::string& key : broken.keys) {
      if (Rank(key) <= best) continue;
      blamed = key;
      best = Rank(key);
    }
    auto origin = origins_.find(blamed);
    std::string where = origin == origins_.end() ? "default" : origin->second.where;
    std::string expected = broken.expected;
    if (const std::string& subject = broken.keys.front(); blamed != subject && !broken.together) {
      expected = absl::StrCat(subject, " to be ", expected, "; it is ", ValueFor(subject));
    }
    return {where, blamed, ValueFor(blamed), expected, ""};
  }

  std::string ValueFor(const std::string& key) const { return GetValue(*schema_.Find(key), result_->config); }

  int Rank(const std::string& key) const {
    auto origin = origins_.find(key);
    if (origin == origins_.end()) return 0;
    return origin->second.where == kCommandLine ? 2 : 1;
  }

  ConfigSchema schema_;
  ParsedRunConfig* result_;
  std::map<std::string, Setting> origins_;  // the last setting of each key
  std::set<std::string> wrong_;             // keys with a refused value
};

absl::Status NotReadable(const std::string& path, int error) {
  auto code = error == EACCES ? absl::StatusCode::kPermissionDenied : absl::StatusCode::kNotFound;
  return Error(code, "CONFIG_NOT_READABLE",
               absl::StrCat("cannot read the configuration ", path, ": ", std::strerror(error)));
}

}  // namespace

ParsedRunConfig ParseRunConfig(const std::string& yaml, const std::string& source,
                               const std::vector<std::string>& overrides, const LookAround& look) {
  ParsedRunConfig result;
  Applier applier(&result);
  applier.ApplyFile(ParseYamlSettings(yaml, source));
  applier.ApplyOverrides(ParseOverrides(overrides));
  applier.Resolve(look);
  applier.RefuseShapeBesidePath();
  applier.ApplyRules();
  return result;
}

absl::StatusOr<v1::RunConfig> LoadRunConfig(const std::string& path, const std::vector<std::string>& overrides,
                                            const std::function<int64_t()>& count_gpus) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return NotReadable(path, EISDIR);
  std::ifstream file(path);
  const std::filesystem::path name(path);
  if (!file && errno == ENOENT && name.filename() == kNextConfigFile) {
    file.open(name.parent_path() / kResolvedConfigFile);
  }
  if (!file) return NotReadable(path, errno);
  std::stringstream text;
  text << file.rdbuf();
  auto look = [&](const v1::RunConfig& config) {
    Surroundings around = LookAtFiles(FileSystem::Real(), config);
    auto may_be_auto = [](const std::string& device) { return device.empty() || device == "auto"; };
    const bool asks = may_be_auto(config.train().device()) || may_be_auto(config.rollout().device());
    if (asks && count_gpus != nullptr) around.gpus = count_gpus();
    return around;
  };
  ParsedRunConfig parsed = ParseRunConfig(text.str(), path, overrides, look);
  if (!parsed.problems.empty()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_CONFIG", ToString(parsed.problems));
  }
  return std::move(parsed.config);
}

double TargetStaleness(const v1::RunConfig& config) {
  const auto& staleness = config.staleness();
  if (staleness.target_staleness() >= 0) return staleness.target_staleness();
  return static_cast<double>(std::min<int64_t>(1, staleness.max_staleness()));
}

int64_t MaxParked(const v1::RunConfig& config) {
  constexpr int64_t kParkedPerSequence = 4;
  const auto& rollout = config.rollout();
  return rollout.max_parked() > 0 ? rollout.max_parked() : kParkedPerSequence * rollout.max_sequences();
}

int64_t GroupsInFlight(const v1::RunConfig& config) {
  const auto& rollout = config.rollout();
  if (rollout.max_groups_in_flight() > 0) return rollout.max_groups_in_flight();
  const int64_t kept_free = config.endpoint().sequences();
  if (kept_free > 0) return std::max<int64_t>(1, (rollout.max_sequences() - kept_free) / rollout.samples());
  return (rollout.max_sequences() + rollout.samples() - 1) / rollout.samples();
}

}  // namespace syncopate::config
