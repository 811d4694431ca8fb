#pragma once

#include <cstdint>
#include <string>

namespace syncopate {

// A file of this process's control group (version 2), such as "memory.max" or "cpu.max"; empty if there is none.
std::string ReadControlGroup(const std::string& name);

// What the kernel says of memory. Of a control group: its files of that name, or empty where it sets no limit.
struct MemoryTexts {
  std::string meminfo;  // /proc/meminfo
  std::string group_max;
  std::string group_current;
  std::string group_stat;
};

// Bytes that this process may have at most, and that it can have now: of the machine, and under its control group's
// limit. What the group holds of files that nobody uses counts as available, as the kernel gives it up when asked.
struct HostMemory {
  int64_t bytes = 0;
  int64_t available = 0;
};
HostMemory HostMemoryOf(const MemoryTexts& texts);
// Reads a few files; does not block.
HostMemory ReadHostMemory();

}  // namespace syncopate
