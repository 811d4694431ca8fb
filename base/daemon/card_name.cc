#include "base/daemon/card_name.h"

#include <fstream>

namespace syncopate::daemon {

std::string CardName(const std::string& gpu_uuid) {
  if (!gpu_uuid.empty()) return gpu_uuid;
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return "cpu-" + boot;
}

}  // namespace syncopate::daemon
