#include "base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace syncopate {
namespace {

spdlog::level::level_enum ToSpdlog(Severity severity) {
  switch (severity) {
    case Severity::kDebug:
      return spdlog::level::debug;
    case Severity::kInfo:
      return spdlog::level::info;
    case Severity::kWarning:
      return spdlog::level::warn;
    case Severity::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// The logger is never destroyed, because other threads may still log while the process exits.
std::shared_ptr<spdlog::logger>& Logger() {
  static auto* logger = [] {
    auto made = std::make_shared<spdlog::logger>("syncopate", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    return new std::shared_ptr<spdlog::logger>(std::move(made));
  }();
  return *logger;
}

}  // namespace

absl::Status InitLogging(const LogOptions& options) {
  std::vector<spdlog::sink_ptr> sinks;
  if (options.to_stderr) sinks.push_back(std::make_shared<spdlog::sinks::stderr_sink_mt>());
  if (!options.file.empty()) {
    try {
      sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file));
    } catch (const spdlog::spdlog_ex& error) {
      return Error(absl::StatusCode::kFailedPrecondition, "LOG_FILE_NOT_WRITABLE",
                   absl::StrFormat("cannot write the log %s: %s", options.file, error.what()));
    }
  }
  auto logger = std::make_shared<spdlog::logger>("syncopate", sinks.begin(), sinks.end());
  logger->set_level(ToSpdlog(options.minimum));
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%f %L " + options.role + " %s:%# %v");
  logger->flush_on(spdlog::level::info);  // a process that is killed loses no line
  Logger() = std::move(logger);
  return absl::OkStatus();
}

bool LogEnabled(Severity severity) { return Logger()->should_log(ToSpdlog(severity)); }

void LogLine(Severity severity, const char* file, int line, const std::string& text) {
  const char* slash = std::strrchr(file, '/');
  spdlog::source_loc where{slash != nullptr ? slash + 1 : file, line, ""};
  Logger()->log(where, ToSpdlog(severity), spdlog::string_view_t(text));
}

}  // namespace syncopate
