// Reading a run directory for the checker.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/status.h"
#include "services/trainer/data_codec.h"
#include "services/wire/codec.h"
#include "tests/support/process.h"
#include "tests/support/run_checker.h"
#include "tools/records/event_reader.h"
#include "trainer/checkpoint/checkpoint_manifest.h"
#include "trainer/checkpoint/checkpoint_store.h"
#include "trainer/data/segmented_log.h"

namespace syncopate::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kDataFile[] = "data.pb";

// Opening a log begins a new generation in it, and opening a folder of checkpoints deletes incomplete ones: so only
// copies are opened.
absl::Status CopyFolder(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::create_directories(to, error);
  fs::copy(from, to, fs::copy_options::recursive | fs::copy_options::overwrite_existing, error);
  return error ? absl::UnavailableError(absl::StrCat("cannot copy ", from, ": ", error.message())) : absl::OkStatus();
}

absl::Status ReadLog(const std::string& folder, RunHistory* history) {
  if (!fs::exists(folder)) return absl::OkStatus();
  TempDir copy;
  SYNCOPATE_RETURN_IF_ERROR(CopyFolder(folder, copy.path()));
  auto add = [history](uint64_t sequence, absl::string_view payload) -> absl::Status {
    SYNCOPATE_ASSIGN_OR_RETURN(trainer::LogRecord record, trainerd::DecodeLogRecord(payload));
    if (history->log.empty()) history->first_record = sequence;
    history->log.push_back(std::move(record));
    return absl::OkStatus();
  };
  return trainer::SegmentedLog::Open(FileSystem::Real(), {.folder = copy.path()}, add).status();
}

// Null for text that is no JSON object.
json ParseObject(const std::string& text) {
  json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return parsed.is_object() ? parsed : json();
}

void ReadSteps(const std::string& path, RunHistory* history) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const json record = ParseObject(line);
    if (record.is_null()) ++history->torn_lines;
    if (record.is_null() || record.value("kind", "") != "step") continue;
    // See StepLine::weights_digest.
    const bool names_other_bytes = record.value("stage_seconds", 0.0) > 0 && !record.contains("published_digest");
    history->steps.push_back({.version = {record.value("epoch", int64_t{0}), record.value("step", int64_t{0})},
                              .is_replay = record.value("replay", false),
                              .weights_digest = names_other_bytes ? "" : record.value("weights_digest", ""),
                              .tokens = record.value("trained_tokens", int64_t{0}),
                              .staleness_max = record.value("staleness_max", int64_t{0})});
  }
}

absl::Status ReadCheckpoints(const std::string& folder, RunHistory* history) {
  if (!fs::exists(folder)) return absl::OkStatus();
  std::vector<PolicyVersion> versions;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (auto version = trainer::ParseCheckpointName(entry.path().filename().string())) versions.push_back(*version);
  }
  std::sort(versions.begin(), versions.end());
  // Only complete checkpoints are copied, so opening the copy deletes nothing.
  TempDir copy;
  for (const PolicyVersion& version : versions) {
    const std::string name = version.ToString();
    SYNCOPATE_RETURN_IF_ERROR(CopyFolder(JoinPath(folder, name), JoinPath(copy.path(), name)));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(auto store, trainer::CheckpointStore::Open(FileSystem::Real(), copy.path()));
  for (const PolicyVersion& version : versions) {
    absl::StatusOr<trainer::CheckpointManifest> verified = store->Verify(version);
    if (!verified.ok()) {
      history->damaged_checkpoints.push_back(verified.status().ToString());
      continue;
    }
    SYNCOPATE_ASSIGN_OR_RETURN(std::string bytes, store->ReadFile(*verified, kDataFile));
    SYNCOPATE_ASSIGN_OR_RETURN(trainer::DataState data, trainerd::DecodeDataState(bytes));
    history->checkpoints.push_back({version, std::move(data)});
  }
  return absl::OkStatus();
}

// A run before its first event, or on a full disk, has no event log.
void ReadVersions(const std::string& run_dir, RunHistory* history) {
  auto events = records::ReadRunEvents(FileSystem::Real(), run_dir);
  if (!events.ok()) return;
  for (const v1::Event& event : events->events) {
    const auto digest = event.fields().find("digest");
    RunHistory::Served served{event.role(), wire::FromProto(event.version()),
                              digest == event.fields().end() ? "" : digest->second};
    if (event.kind() == "publish") history->published.push_back(served);
    if (event.kind() == "install" || event.kind() == "relabel") history->installed.push_back(served);
  }
}

void ReadSummary(const std::string& path, RunHistory* history) {
  std::ifstream file(path);
  const json summary = ParseObject(std::string(std::istreambuf_iterator<char>(file), {}));
  if (summary.is_null()) return;
  const json groups = summary.value("groups", json::object());
  history->summary = {.status = summary.value("status", ""),
                      .steps = summary.value("steps", int64_t{0}),
                      .violations = summary.value("staleness", json::object()).value("violations", int64_t{0}),
                      .acked = groups.value("acked", int64_t{0}),
                      .trained = groups.value("trained", int64_t{0}),
                      .failed = groups.value("dropped", json::object()).value("failed", int64_t{0}),
                      .trained_tokens = summary.value("tokens", json::object()).value("trained", int64_t{0})};
}

}  // namespace

absl::StatusOr<RunHistory> ReadRunHistory(const std::string& run_dir, const std::string& checkpoint_dir) {
  RunHistory history;
  // The order matters: in a run that is alive, nothing is read that the log does not contain yet.
  ReadSummary(JoinPath(run_dir, "summary.json"), &history);
  ReadSteps(JoinPath(run_dir, "metrics.jsonl"), &history);
  ReadVersions(run_dir, &history);
  SYNCOPATE_RETURN_IF_ERROR(
      ReadCheckpoints(checkpoint_dir.empty() ? JoinPath(run_dir, "checkpoints") : checkpoint_dir, &history));
  SYNCOPATE_RETURN_IF_ERROR(ReadLog(JoinPath(run_dir, "state/trainer/log"), &history));
  return history;
}

}  // namespace syncopate::testing
