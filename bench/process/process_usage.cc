#include "bench/process/process_usage.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::bench {

absl::StatusOr<ProcessUsage> ReadProcessUsage(pid_t pid) {
  const std::string folder = absl::StrCat("/proc/", pid);
  std::ifstream file(folder + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(')');  // the name itself may contain spaces and parentheses
  std::istringstream fields(name_end == std::string::npos ? "" : text.substr(name_end + 1));
  double user_ticks = 0;
  double system_ticks = 0;
  ProcessUsage usage;
  int64_t pages = 0;
  std::string skipped;
  for (int field = 3; field <= 24; ++field) {  // the state is field 3 in proc(5)
    switch (field) {
      case 14:
        fields >> user_ticks;
        break;
      case 15:
        fields >> system_ticks;
        break;
      case 20:
        fields >> usage.threads;
        break;
      case 24:
        fields >> pages;
        break;
      default:
        fields >> skipped;
    }
  }
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder + "/fd", error), end; !error && at != end; at.increment(error)) {
    ++usage.descriptors;
  }
  if (!fields || error) {
    return Error(absl::StatusCode::kUnavailable, "PEER_GONE", absl::StrCat("process ", pid, " is not there any more"));
  }
  usage.cpu_seconds = (user_ticks + system_ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  usage.resident_bytes = pages * ::sysconf(_SC_PAGESIZE);
  return usage;
}

}  // namespace syncopate::bench
