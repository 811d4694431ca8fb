#include "bench/sync/gpu_list.h"

#include <array>
#include <cstdio>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace syncopate::bench {

std::vector<GpuState> ParseGpuList(const std::string& text) {
  std::vector<GpuState> gpus;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const size_t comma = line.rfind(',');
    int64_t mib = 0;
    if (comma == absl::string_view::npos || !absl::SimpleAtoi(line.substr(comma + 1), &mib)) continue;
    gpus.push_back({std::string(absl::StripAsciiWhitespace(line.substr(0, comma))), mib << 20});
  }
  return gpus;
}

absl::StatusOr<std::vector<GpuState>> ListGpus() {
  const char* const command = "nvidia-smi --query-gpu=name,memory.used --format=csv,noheader,nounits 2>&1";
  std::string text;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command, "r"), &::pclose);
  std::array<char, 4096> buffer;
  while (pipe != nullptr && std::fgets(buffer.data(), buffer.size(), pipe.get()) != nullptr) text += buffer.data();
  std::vector<GpuState> gpus = ParseGpuList(text);
  if (!gpus.empty()) return gpus;
  return Error(absl::StatusCode::kFailedPrecondition, "NO_GPU",
               absl::StrCat("nvidia-smi lists no GPU (", absl::StripAsciiWhitespace(text),
                            "); --cpu measures host memory instead"));
}

}  // namespace syncopate::bench
