#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/host_memory.h"
#include "tools/doctor/looks.h"

namespace syncopate::doctor {
namespace {

// 0 for "max", a missing file and malformed text.
int64_t GroupLimit(const std::string& name) {
  int64_t limit = 0;
  return absl::SimpleAtoi(absl::StripAsciiWhitespace(ReadControlGroup(name)), &limit) ? limit : 0;
}

// "200000 100000" means two processors; "max 100000" means no quota.
double ProcessorQuota() {
  const std::vector<std::string> parts = absl::StrSplit(absl::StripAsciiWhitespace(ReadControlGroup("cpu.max")), ' ');
  double quota = 0, period = 0;
  const bool limited = parts.size() == 2 && absl::SimpleAtod(parts[0], &quota) && absl::SimpleAtod(parts[1], &period);
  return limited && period > 0 ? quota / period : 0;
}

}  // namespace

void InspectLimits(Machine* machine) {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) machine->processors = CPU_COUNT(&set);
  machine->processor_quota = ProcessorQuota();
  const HostMemory memory = ReadHostMemory();
  machine->memory_bytes = memory.bytes;
  machine->available_bytes = memory.available;
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    machine->open_files = static_cast<int64_t>(files.rlim_cur);
    machine->open_files_hard = static_cast<int64_t>(files.rlim_max);
  }
  machine->tasks = GroupLimit("pids.max");
  struct statvfs shared {};
  if (::statvfs("/dev/shm", &shared) == 0) {
    machine->shared_memory_bytes = static_cast<int64_t>(shared.f_blocks) * static_cast<int64_t>(shared.f_frsize);
  }
  timex clock{};
  const int state = ::adjtimex(&clock);
  machine->clock_synchronised = state >= 0 && state != TIME_ERROR && (clock.status & STA_UNSYNC) == 0;
}

}  // namespace syncopate::doctor
