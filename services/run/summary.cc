#include "services/run/summary.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file_system.h"

namespace syncopate::services {

using nlohmann::json;

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

absl::StatusOr<json> FinishSummary(const std::string& run_dir, const RunEnd& end) {
  constexpr int64_t kMaxBytes = 16 << 20;
  std::string path = (std::filesystem::path(run_dir) / "summary.json").string();
  auto text = ReadFile(FileSystem::Real(), path, kMaxBytes);
  json summary = text.ok() ? json::parse(*text, nullptr, /*allow_exceptions=*/false) : json::object();
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
  SYNCOPATE_RETURN_IF_ERROR(WriteFileAtomically(FileSystem::Real(), path, summary.dump(2) + "\n"));
  return summary;
}

}  // namespace syncopate::services
