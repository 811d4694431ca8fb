#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncopate::bench {

struct GpuState {
  std::string name;
  int64_t used_bytes = 0;  // by all processes
};

// The GPUs of this machine as nvidia-smi lists them, without a CUDA context of our own, which would take memory and be
// measured. FAILED_PRECONDITION reason NO_GPU if there is none.
absl::StatusOr<std::vector<GpuState>> ListGpus();

// Parses the output of nvidia-smi's query for name and used memory in MiB, a GPU a line. Lines of another form are left
// out.
std::vector<GpuState> ParseGpuList(const std::string& text);

}  // namespace syncopate::bench
