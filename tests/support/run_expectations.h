#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/support/process.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

// What tests expect of processes that they have started. Each function makes the calling test fail, and says why.
namespace syncopate::testing {

// Expects that `process` was started and ends with exit code `code` within `timeout`. Blocks until it has ended. A
// failure shows the log of the process.
inline void ExpectEnd(const absl::StatusOr<std::unique_ptr<Process>>& process, int code,
                      absl::Duration timeout = 2 * kPatience) {
  ASSERT_THAT(process, IsOk());
  const auto exit = (*process)->WaitExit(timeout);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, code) << (*process)->Log();
}

// Runs `syncopate args...` to its end, whatever its exit code, within kPatience.
inline CommandResult RunSyncopate(const std::vector<std::string>& args) {
  auto result = RunCommand("syncopate", args);
  EXPECT_THAT(result, IsOk());
  return result.value_or(CommandResult());
}

}  // namespace syncopate::testing
