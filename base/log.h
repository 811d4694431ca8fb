#pragma once

#include <string>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace syncopate {

enum class Severity { kDebug, kInfo, kWarning, kError };

struct LogOptions {
  std::string role = "syncopate";  // printed on every line, e.g. "rollouter-1"
  std::string file = {};           // also written here when not empty; made if missing
  Severity minimum = Severity::kInfo;
  bool to_stderr = true;
};

// Sets up the process's one log. Call once in main, before threads start. Until then lines go to standard error.
absl::Status InitLogging(const LogOptions& options);

// Writes one line. Thread-safe. Use SYNCOPATE_LOG, which checks the format at compile time.
void LogLine(Severity severity, const char* file, int line, const std::string& text);
bool LogEnabled(Severity severity);

}  // namespace syncopate

// SYNCOPATE_LOG(kInfo, "member %s joined as %s", id, role): printf-style, types checked by absl::StrFormat.
// Never log prompts, completions, authentication tokens or environment values.
#define SYNCOPATE_LOG(severity, ...)                                                                           \
  do {                                                                                                         \
    if (::syncopate::LogEnabled(::syncopate::Severity::severity)) {                                            \
      ::syncopate::LogLine(::syncopate::Severity::severity, __FILE__, __LINE__, absl::StrFormat(__VA_ARGS__)); \
    }                                                                                                          \
  } while (false)
