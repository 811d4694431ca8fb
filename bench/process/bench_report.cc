#include "bench/process/bench_report.h"

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/status.h"

namespace syncopate::bench {

std::string OwnBinaryDir() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

void PrintProgress(const std::string& what) { std::cerr << what << " ..." << std::endl; }

int ReportBenchError(const absl::Status& status, bool json) {
  std::cerr << status.message() << "\n";
  if (json) {
    const nlohmann::json error = {{"error", std::string(status.message())}, {"reason", ErrorReason(status)}};
    std::cout << error.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << std::endl;
  }
  const bool bad_case = absl::IsInvalidArgument(status) || absl::IsNotFound(status);
  return bad_case ? kBenchBadCase : kBenchFailed;
}

}  // namespace syncopate::bench
