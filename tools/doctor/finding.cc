#include "tools/doctor/finding.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace syncopate::doctor {
namespace {

const char* Name(Finding::Level level) {
  switch (level) {
    case Finding::Level::kGood:
      return "good";
    case Finding::Level::kWarning:
      return "warning";
    case Finding::Level::kBad:
      return "bad";
  }
  return "";
}

int64_t Count(const std::vector<Finding>& findings, Finding::Level level) {
  return std::count_if(findings.begin(), findings.end(), [level](const Finding& one) { return one.level == level; });
}

}  // namespace

std::string ToText(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    absl::StrAppendFormat(&text, "%-8s %s: %s (%s)\n", Name(finding.level), finding.subject, finding.found,
                          finding.looked_at);
    if (!finding.remedy.empty()) absl::StrAppend(&text, "         -> ", finding.remedy, "\n");
  }
  const int64_t warnings = Count(findings, Finding::Level::kWarning);
  absl::StrAppendFormat(&text, "%d looked at, %d bad, %d warning%s\n", findings.size(),
                        Count(findings, Finding::Level::kBad), warnings, warnings == 1 ? "" : "s");
  return text;
}

std::string ToJsonLines(const std::vector<Finding>& findings) {
  std::string lines;
  for (const Finding& finding : findings) {
    const nlohmann::ordered_json line = {{"level", Name(finding.level)},
                                         {"subject", finding.subject},
                                         {"looked_at", finding.looked_at},
                                         {"found", finding.found},
                                         {"remedy", finding.remedy}};
    absl::StrAppend(&lines, line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), "\n");
  }
  return lines;
}

bool AnyBad(const std::vector<Finding>& findings) { return Count(findings, Finding::Level::kBad) > 0; }

}  // namespace syncopate::doctor
