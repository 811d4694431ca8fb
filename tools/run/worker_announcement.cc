#include "tools/run/worker_announcement.h"

#include <nlohmann/json.hpp>
#include <system_error>

#include "base/file_system.h"

namespace syncopate::run {
namespace {

constexpr int64_t kMaxAnnouncementBytes = 1 << 16;

}  // namespace

std::optional<std::filesystem::file_time_type> WorkerAnnouncement::WrittenAt() const {
  std::error_code missing;
  const auto written = std::filesystem::last_write_time(path_, missing);
  return missing ? std::nullopt : std::make_optional(written);
}

void WorkerAnnouncement::Forget() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
  old_ = WrittenAt();
}

std::optional<std::string> WorkerAnnouncement::ReadDigest() const {
  const auto written = WrittenAt();
  if (!written.has_value() || written == old_) return std::nullopt;
  const auto text = ReadFile(FileSystem::Real(), path_, kMaxAnnouncementBytes);
  if (!text.ok()) return std::nullopt;
  const nlohmann::json said = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!said.is_object() || !said.contains("digest") || !said["digest"].is_string()) return std::nullopt;
  return said["digest"].get<std::string>();
}

}  // namespace syncopate::run
