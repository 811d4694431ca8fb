#include "services/telemetry/process_metrics.h"

#include <prometheus/metric_family.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>

namespace syncopate::telemetry {
namespace {

void Add(std::vector<prometheus::MetricFamily>* families, const char* name, const char* help,
         prometheus::MetricType type, double value) {
  prometheus::MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  prometheus::ClientMetric metric;
  // The family's type selects which of the two is shown.
  metric.gauge.value = value;
  metric.counter.value = value;
  family.metric.push_back(std::move(metric));
  families->push_back(std::move(family));
}

// The fields of /proc/self/stat after the command's name; the first, the state, is field 3 in proc(5).
struct ProcessStat {
  double user_ticks = 0, system_ticks = 0, threads = 0, start_ticks = 0, virtual_bytes = 0, resident_pages = 0;
  bool read = false;
};

ProcessStat ReadStat() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  size_t name_end = text.rfind(')');  // the name itself may contain spaces and parentheses
  if (name_end == std::string::npos) return {};
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  ProcessStat stat;
  for (int field = 3; field <= 24 && fields; ++field) {
    double* wanted = field == 14   ? &stat.user_ticks
                     : field == 15 ? &stat.system_ticks
                     : field == 20 ? &stat.threads
                     : field == 22 ? &stat.start_ticks
                     : field == 23 ? &stat.virtual_bytes
                     : field == 24 ? &stat.resident_pages
                                   : nullptr;
    wanted != nullptr ? fields >> *wanted : fields >> skipped;
  }
  stat.read = static_cast<bool>(fields);
  return stat;
}

double BootUnixSeconds() {
  std::ifstream file("/proc/stat");
  std::string word;
  double seconds = 0;
  while (file >> word) {
    if (word == "btime" && file >> seconds) return seconds;
  }
  return 0;
}

}  // namespace

std::vector<prometheus::MetricFamily> ProcessCollector::Collect() const {
  std::vector<prometheus::MetricFamily> families;
  using prometheus::MetricType;
  if (ProcessStat stat = ReadStat(); stat.read) {
    auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
    Add(&families, "process_cpu_seconds_total", "User and system CPU time", MetricType::Counter,
        (stat.user_ticks + stat.system_ticks) / ticks);
    Add(&families, "process_virtual_memory_bytes", "Virtual memory", MetricType::Gauge, stat.virtual_bytes);
    Add(&families, "process_resident_memory_bytes", "Resident memory", MetricType::Gauge,
        stat.resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE)));
    Add(&families, "process_threads", "Threads", MetricType::Gauge, stat.threads);
    if (double boot = BootUnixSeconds(); boot > 0) {
      Add(&families, "process_start_time_seconds", "Start of the process in seconds since 1970", MetricType::Gauge,
          boot + stat.start_ticks / ticks);
    }
  }
  // Fails without a free descriptor; the other figures are shown then too.
  std::error_code error;
  std::filesystem::directory_iterator descriptors("/proc/self/fd", error);
  if (!error) {
    Add(&families, "process_open_fds", "Open file descriptors", MetricType::Gauge,
        static_cast<double>(std::distance(begin(descriptors), end(descriptors))));
  }
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    Add(&families, "process_max_fds", "File descriptors allowed", MetricType::Gauge,
        static_cast<double>(limit.rlim_cur));
  }
  return families;
}

}  // namespace syncopate::telemetry
