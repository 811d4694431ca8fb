#include "tools/run/summary.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file_system.h"

namespace syncopate::run {

using nlohmann::json;

namespace {

std::string GetPath(const std::string& run_dir) { return (std::filesystem::path(run_dir) / "summary.json").string(); }

}  // namespace

std::string OutcomeName(RunOutcome outcome) {
  switch (outcome) {
    case RunOutcome::kRunning:
      return "running";
    case RunOutcome::kCompleted:
      return "completed";
    case RunOutcome::kInterrupted:
      return "interrupted";
    case RunOutcome::kFailed:
      return "failed";
  }
  return "failed";
}

std::string ReadSummary(const std::string& run_dir) {
  constexpr int64_t kMaxBytes = 16 << 20;
  auto text = ReadFile(FileSystem::Real(), GetPath(run_dir), kMaxBytes);
  return text.ok() ? *std::move(text) : "";
}

absl::StatusOr<json> FinishSummary(const std::string& run_dir, const RunEnd& end, const std::string& before,
                                   bool keep) {
  const std::string text = ReadSummary(run_dir);
  json summary = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!summary.is_object()) summary = json::object();
  if (end.outcome == RunOutcome::kFailed || !summary.contains("status")) {
    summary["status"] = OutcomeName(end.outcome);
  }
  json restarts = json::object();
  for (const auto& [child, count] : end.restarts) restarts[child.Name()] = count;
  summary["run"] = {{"outcome", OutcomeName(end.outcome)},
                    {"reason", end.reason},
                    {"wall_seconds", end.wall_seconds},
                    {"restarts", restarts}};
  if (!end.log.empty()) summary["run"]["log"] = end.log;
  if (keep || (!before.empty() && text == before)) return summary;
  SYNCOPATE_RETURN_IF_ERROR(WriteFileAtomically(FileSystem::Real(), GetPath(run_dir),
                                                summary.dump(2, ' ', false, json::error_handler_t::replace) + "\n"));
  return summary;
}

}  // namespace syncopate::run
