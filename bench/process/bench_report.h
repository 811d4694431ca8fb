#pragma once

#include <string>

#include "absl/status/status.h"

// Functions that the command line's benchmarks share.
namespace syncopate::bench {

inline constexpr int kBenchFailed = 1;
inline constexpr int kBenchBadCase = 2;

// The folder of this program and of the programs that it starts.
std::string OwnBinaryDir();
// Prints one line to standard error.
void PrintProgress(const std::string& what);
// Prints the error to standard error, and with `json` also to standard output, for programs. Returns the exit code.
int ReportBenchError(const absl::Status& status, bool json);

}  // namespace syncopate::bench
