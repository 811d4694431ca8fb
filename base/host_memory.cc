#include "base/host_memory.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace syncopate {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The number after `name` in lines such as "MemTotal:  24543 kB" and "inactive_file 4096"; 0 without such a line.
int64_t NumberBehind(absl::string_view text, absl::string_view name) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t number = 0;
    if (words.size() >= 2 && words[0] == name && absl::SimpleAtoi(words[1], &number)) return number;
  }
  return 0;
}

// 0 for "max", an empty text and text that is no number.
int64_t NumberIn(absl::string_view text) {
  int64_t number = 0;
  return absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &number) ? number : 0;
}

}  // namespace

std::string ReadControlGroup(const std::string& name) {
  // "0::/user.slice/..."; inside a container usually "0::/".
  const std::string groups = ReadText("/proc/self/cgroup");
  const std::vector<std::string> parts = absl::StrSplit(groups.substr(0, groups.find('\n')), absl::MaxSplits(':', 2));
  const std::string group = parts.size() == 3 ? parts[2] : "/";
  return ReadText(absl::StrCat("/sys/fs/cgroup", group == "/" ? "" : group, "/", name));
}

HostMemory GetHostMemory(const MemoryTexts& texts) {
  constexpr int64_t kKiB = 1024;
  HostMemory memory{NumberBehind(texts.meminfo, "MemTotal:") * kKiB,
                    NumberBehind(texts.meminfo, "MemAvailable:") * kKiB};
  const int64_t limit = NumberIn(texts.group_max);
  if (limit <= 0) return memory;
  memory.bytes = std::min(memory.bytes, limit);
  const int64_t used = NumberIn(texts.group_current) - NumberBehind(texts.group_stat, "inactive_file");
  memory.available = std::min(memory.available, std::max<int64_t>(0, limit - used));
  return memory;
}

HostMemory ReadHostMemory() {
  return GetHostMemory({.meminfo = ReadText("/proc/meminfo"),
                        .group_max = ReadControlGroup("memory.max"),
                        .group_current = ReadControlGroup("memory.current"),
                        .group_stat = ReadControlGroup("memory.stat")});
}

}  // namespace syncopate
