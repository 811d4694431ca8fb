#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/doctor/looks.h"

namespace syncopate::doctor {
namespace {

// The first line of a file of the kernel; "" if it cannot be read.
std::string FirstLine(const std::string& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

// A limit of this process's control group (version 2), e.g. "memory.max"; "" if there is none.
std::string GroupFile(const std::string& name) {
  // "0::/user.slice/..."; inside a container usually "0::/".
  const std::vector<std::string> parts = absl::StrSplit(FirstLine("/proc/self/cgroup"), absl::MaxSplits(':', 2));
  const std::string group = parts.size() == 3 ? parts[2] : "/";
  return FirstLine(absl::StrCat("/sys/fs/cgroup", group == "/" ? "" : group, "/", name));
}

// 0 for "max", nothing and nonsense.
int64_t GroupLimit(const std::string& name) {
  int64_t limit = 0;
  return absl::SimpleAtoi(GroupFile(name), &limit) ? limit : 0;
}

// "200000 100000" are two processors; "max 100000" is no quota.
double ProcessorQuota() {
  const std::vector<std::string> parts = absl::StrSplit(GroupFile("cpu.max"), ' ');
  double quota = 0, period = 0;
  const bool limited = parts.size() == 2 && absl::SimpleAtod(parts[0], &quota) && absl::SimpleAtod(parts[1], &period);
  return limited && period > 0 ? quota / period : 0;
}

// Of /proc/meminfo, in bytes.
std::map<std::string, int64_t> MemoryInfo() {
  std::map<std::string, int64_t> info;
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (int64_t kib = 0; file >> name >> kib; std::getline(file, unit)) info[name] = kib * 1024;
  return info;
}

void LookAtMemory(Machine* machine) {
  std::map<std::string, int64_t> info = MemoryInfo();
  machine->memory_bytes = info["MemTotal:"];
  machine->available_bytes = info["MemAvailable:"];
  const int64_t limit = GroupLimit("memory.max");
  if (limit <= 0) return;
  machine->memory_bytes = std::min(machine->memory_bytes, limit);
  const int64_t left = std::max<int64_t>(0, limit - GroupLimit("memory.current"));
  machine->available_bytes = std::min(machine->available_bytes, left);
}

}  // namespace

void LookAtLimits(Machine* machine) {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) machine->processors = CPU_COUNT(&set);
  machine->processor_quota = ProcessorQuota();
  LookAtMemory(machine);
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
