// Parses an untrusted configuration, and after a 0 byte overrides, one a line: the result is problems, or a
// configuration whose own text parses to the same configuration.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "services/config/run_config.h"
#include "tests/fuzz/fuzz_target.h"

SYNCOPATE_FUZZ_TARGET(config) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), input.size());
  std::vector<std::string> overrides;
  if (end < input.size()) overrides = absl::StrSplit(input.substr(end + 1), '\n');
  const auto parsed = syncopate::config::ParseRunConfig(input.substr(0, end), "input", overrides);
  if (!parsed.problems.empty()) return 0;
  const auto again = syncopate::config::ParseRunConfig(syncopate::config::ToYaml(parsed.config), "again");
  if (!again.problems.empty() || again.config.SerializeAsString() != parsed.config.SerializeAsString()) std::abort();
  return 0;
}
