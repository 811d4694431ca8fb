#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing {

// The exit code of a benchmark's process and what the process printed.
struct BenchOutcome {
  int code = -1;
  std::string log;
  nlohmann::json result;  // the last line that is a JSON object
};

inline BenchOutcome AwaitBench(const absl::StatusOr<std::unique_ptr<Process>>& process, absl::Duration patience) {
  EXPECT_THAT(process, IsOk());
  if (!process.ok()) return {};
  auto exit = (*process)->WaitExit(patience);
  EXPECT_THAT(exit, IsOk());
  BenchOutcome outcome{exit.ok() ? exit->code : -1, (*process)->Log(), nullptr};
  for (absl::string_view line : absl::StrSplit(outcome.log, '\n')) {
    auto parsed = nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
    if (parsed.is_object()) outcome.result = std::move(parsed);
  }
  return outcome;
}

}  // namespace syncopate::testing
