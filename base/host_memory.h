#pragma once

#include <cstdint>
#include <string>

namespace syncopate {

// A file of this process's control group (version 2), such as "memory.max" or "cpu.max"; empty if there is none.
std::string ReadControlGroup(const std::string& name);

// The kernel's texts about memory. group_*: files memory.* of the control group; empty if the process has none.
struct MemoryTexts {
  std::string meminfo;  // /proc/meminfo
  std::string group_max;
  std::string group_current;
  std::string group_stat;
};

// Bytes of memory that this process may use in all, and bytes that it can get now: those of the machine, limited by its
// control group. The group's inactive file cache counts as available, because the kernel frees it on demand.
struct HostMemory {
  int64_t bytes = 0;
  int64_t available = 0;
};
HostMemory GetHostMemory(const MemoryTexts& texts);
// Reads a few files; does not block.
HostMemory ReadHostMemory();

}  // namespace syncopate
