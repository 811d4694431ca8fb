#include "tools/report/load_run.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/records/event_reader.h"

namespace syncopate::report {
namespace {

using nlohmann::json;
using Settings = std::vector<std::pair<std::string, std::string>>;

constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kChunkBytes = 4 << 20;
constexpr size_t kMaxLineBytes = 16 << 20;  // of metrics.jsonl; a longer one is no record
constexpr char kMetrics[] = "metrics.jsonl";

// Collects the valid lines of metrics.jsonl: for each step and each evaluation the line of the highest epoch.
class Records {
 public:
  void Add(const std::string& line) {
    absl::StatusOr<records::StepRecord> record = records::ParseStepRecord(line);
    if (!record.ok()) {
      ++damaged_;  // a crash or a full disk has cut it
      return;
    }
    auto& place = newest_[{record->step, record->is_evaluation}];
    if (record->epoch >= place.epoch) place = *std::move(record);
  }

  // Adds steps and evaluations in order, a step before the evaluation of its version. Records of an older epoch at or
  // after the first step of a newer epoch were rolled back, and are left out.
  void AddTo(RunHistory* history) const {
    std::map<int64_t, int64_t> begins;  // from epoch to the first step that it made
    for (const auto& [key, record] : newest_) {
      if (!record.is_evaluation) begins.emplace(record.epoch, record.step);
    }
    for (const auto& [key, record] : newest_) {
      const auto rolled_back = [&record = record](const auto& begin) {
        return begin.first > record.epoch && begin.second <= record.step;
      };
      if (std::none_of(begins.begin(), begins.end(), rolled_back)) history->AddRecord(record);
    }
  }

  bool empty() const { return newest_.empty(); }
  int64_t damaged() const { return damaged_; }

 private:
  std::map<std::pair<int64_t, bool>, records::StepRecord> newest_;
  int64_t damaged_ = 0;
};

absl::Status ReadRecords(FileSystem* files, const std::string& path, Records* records) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto file, files->OpenForRead(path));
  std::string pending;
  while (true) {
    SYNCOPATE_ASSIGN_OR_RETURN(const std::string chunk, file->Read(kChunkBytes));
    if (chunk.empty()) return absl::OkStatus();  // a last line without a line break is still being written
    size_t begin = 0;
    for (size_t end; (end = chunk.find('\n', begin)) != std::string::npos; begin = end + 1) {
      pending.append(chunk, begin, end - begin);
      records->Add(pending);
      pending.clear();
    }
    pending.append(chunk, begin, std::string::npos);
    if (pending.size() > kMaxLineBytes) {
      return absl::ResourceExhaustedError(absl::StrCat(path, " has a line of more than ", kMaxLineBytes, " bytes"));
    }
  }
}

void Flatten(const YAML::Node& node, const std::string& path, Settings* settings) {
  if (node.IsMap() && node.size() > 0) {
    for (const auto& entry : node) {
      const auto key = entry.first.as<std::string>();
      Flatten(entry.second, path.empty() ? key : absl::StrCat(path, ".", key), settings);
    }
    return;
  }
  YAML::Emitter text;
  text.SetSeqFormat(YAML::Flow);
  text.SetMapFormat(YAML::Flow);
  text << node;
  settings->emplace_back(path, node.IsScalar() ? node.Scalar() : text.c_str());
}

std::string Setting(const Settings& settings, const std::string& key) {
  for (const auto& [name, value] : settings) {
    if (name == key) return value;
  }
  return "";
}

void ReadSummary(FileSystem* files, const std::string& run_dir, RunHistory::Description* description) {
  absl::StatusOr<std::string> text = ReadFile(files, JoinPath(run_dir, "summary.json"), kMaxConfigBytes);
  if (!text.ok()) return;  // written at the end of a run
  json summary = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!summary.is_object()) {
    description->warnings.push_back("summary.json is damaged");
    return;
  }
  const auto text_at = [&summary](const char* pointer) {
    const json::json_pointer path(pointer);
    return summary.contains(path) && summary[path].is_string() ? summary[path].get<std::string>() : std::string();
  };
  description->status = text_at("/run/outcome").empty() ? text_at("/status") : text_at("/run/outcome");
  description->reason = text_at("/run/reason");
  const json::json_pointer log("/run/log"), failed("/checkpoints/failed");
  if (summary.contains(log) && summary[log].is_array()) {
    for (const json& line : summary[log]) {
      if (line.is_string()) description->log.push_back(line.get<std::string>());
    }
  }
  if (summary.contains(failed) && summary[failed].is_number_integer()) {
    description->checkpoints.failed = summary[failed].get<int64_t>();
  }
  description->summary = std::move(summary);
}

// Reads the file that is written beside the checkpoints whenever there is a better one: valid also during the run.
void ReadBest(FileSystem* files, const std::string& run_dir, RunHistory::Description* description) {
  const std::string folder = Setting(description->config, "checkpoint.dir");
  const std::string root = folder.empty() ? JoinPath(run_dir, "checkpoints") : folder;
  const absl::StatusOr<std::string> text = ReadFile(files, JoinPath(root, "best.json"), kMaxConfigBytes);
  const json best = json::parse(text.value_or(""), nullptr, /*allow_exceptions=*/false);
  if (!best.is_object()) return;
  const json name = best.value("checkpoint", json()), reward = best.value("reward_mean", json());
  if (name.is_string()) description->checkpoints.best = name.get<std::string>();
  if (reward.is_number()) description->checkpoints.best_reward = reward.get<double>();
}

// Key and value of each setting of a YAML text with sections.
absl::StatusOr<Settings> FlattenYaml(const std::string& text) {
  Settings settings;
  try {  // yaml-cpp throws
    const YAML::Node root = YAML::Load(text);
    if (root.IsMap()) Flatten(root, "", &settings);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("config.resolved.yaml: ", error.what()));
  }
  return settings;
}

}  // namespace

absl::StatusOr<RunHistory::Description> DescribeRun(const std::string& run_dir, const std::string& config_yaml) {
  RunHistory::Description description;
  std::filesystem::path folder = std::filesystem::absolute(run_dir).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  description.folder = folder.string();
  description.name = folder.filename().string();
  description.status = "running";
  SYNCOPATE_ASSIGN_OR_RETURN(description.config, FlattenYaml(config_yaml));
  if (!absl::SimpleAtoi(Setting(description.config, "run.steps"), &description.steps_total)) {
    description.steps_total = 0;
  }
  return description;
}

absl::StatusOr<RunHistory> LoadRun(FileSystem* files, const std::string& run_dir) {
  RunHistory history;
  const absl::StatusOr<std::string> yaml = ReadFile(files, JoinPath(run_dir, "config.resolved.yaml"), kMaxConfigBytes);
  absl::StatusOr<RunHistory::Description> described = DescribeRun(run_dir, yaml.value_or(""));
  RunHistory::Description description;
  if (described.ok()) {
    description = *std::move(described);
  } else {
    SYNCOPATE_ASSIGN_OR_RETURN(description, DescribeRun(run_dir, ""));
    description.warnings.push_back(std::string(described.status().message()));
  }
  ReadSummary(files, run_dir, &description);
  ReadBest(files, run_dir, &description);
  Records records;
  const absl::Status read = ReadRecords(files, JoinPath(run_dir, kMetrics), &records);
  if (records.empty() && description.config.empty()) {
    return Error(absl::StatusCode::kNotFound, "NOT_A_RUN",
                 absl::StrCat(run_dir, " is no run directory: it has neither metrics.jsonl nor config.resolved.yaml"));
  }
  if (!read.ok() && !absl::IsNotFound(read)) description.warnings.push_back(std::string(read.message()));
  if (records.damaged() > 0) {
    description.warnings.push_back(absl::StrCat(records.damaged(), " lines of ", kMetrics, " are damaged"));
  }
  records.AddTo(&history);
  absl::StatusOr<records::RunEvents> events = records::ReadRunEvents(files, run_dir);
  if (events.ok()) {
    for (const std::string& warning : events->warnings) description.warnings.push_back(warning);
    for (const v1::Event& event : events->events) history.AddEvent(event);
  }
  history.SetDescription(std::move(description));
  return history;
}

}  // namespace syncopate::report
