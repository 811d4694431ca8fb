#include "bench/measure/device_profile.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace syncopate::bench {

using nlohmann::json;
namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

json ProfileOnce(at::Device device, const std::function<void()>& work) {
  const auto wait = [device] {
    if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  };
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  std::set<ActivityType> wanted = {device.is_cpu() ? ActivityType::CPU : ActivityType::CUDA};
  kineto::prepareProfiler(config, wanted);
  wait();
  kineto::enableProfiler(config, wanted, {at::RecordScope::FUNCTION});
  work();
  wait();
  const auto result = kineto::disableProfiler();
  struct Total {
    double ms = 0;
    int64_t calls = 0;
  };
  std::map<std::string, Total> totals;
  for (const kineto::KinetoEvent& event : result->events()) {
    if (event.deviceType() != device.type()) continue;
    Total& total = totals[event.name()];
    total.ms += static_cast<double>(event.durationNs()) / 1e6;
    ++total.calls;
  }
  std::vector<std::pair<std::string, Total>> sorted(totals.begin(), totals.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& one, const auto& other) { return one.second.ms > other.second.ms; });
  json lines = json::array();
  for (const auto& [name, total] : sorted) lines.push_back({{"name", name}, {"ms", total.ms}, {"calls", total.calls}});
  return lines;
}

}  // namespace syncopate::bench
