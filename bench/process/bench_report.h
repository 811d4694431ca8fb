#pragma once

#include <string>

#include "absl/status/status.h"

// What the benchmarks of the command line have in common.
namespace syncopate::bench {

inline constexpr int kBenchFailed = 1;
inline constexpr int kBenchBadCase = 2;

// Where this program is, and with it the programs that it starts.
std::string OwnBinaryDir();
// A line on standard error.
void PrintProgress(const std::string& what);
// The error for people on standard error, and for programs, if `json`, on standard output. Returns the exit code.
int ReportBenchError(const absl::Status& status, bool json);

}  // namespace syncopate::bench
