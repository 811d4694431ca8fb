#include "bench/sync/ceiling.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "bench/process/bench_child.h"
#include "bench/process/json_fields.h"

namespace syncopate::bench {
namespace {

using nlohmann::json;

constexpr int64_t kLoopbackBytes = int64_t{256} << 20;  // enough for a steady rate

absl::StatusOr<std::map<std::string, Ceiling>> MeasureOnGpus(const SyncCase& sync_case, int64_t weight_bytes,
                                                             int devices, const std::string& binary_dir,
                                                             const std::string& work_dir, absl::Duration limit) {
  std::vector<int> places = PlaceProcesses(sync_case, devices);
  const std::vector<int> sources(places.begin(), places.begin() + sync_case.sources);
  const std::vector<int> receivers(places.begin() + sync_case.sources,
                                   places.begin() + sync_case.sources + sync_case.receivers());
  const json argument = {{"sources", sources},
                         {"receivers", receivers},
                         {"replicas", sync_case.replicas},
                         {"bytes", weight_bytes / sync_case.tensor_parallel},
                         {"transport", sync_case.transport}};
  EventQueue events;
  // Before members start, and in a process that ends, because it uses whole GPUs.
  SYNCOPATE_ASSIGN_OR_RETURN(auto child, BenchChild::Start({"ceiling",
                                                            absl::StrCat(binary_dir, "/syncopate-bench-ceiling"),
                                                            {argument.dump()},
                                                            absl::StrCat(work_dir, "/ceiling.log")},
                                                           &events));
  std::map<std::string, Ceiling> ceilings;
  const absl::Time deadline = Clock::Real()->Now() + limit;
  while (std::optional<BenchEvent> event = events.Next(deadline)) {
    if (event->kind == "ended") break;
    if (event->kind != "ceiling") continue;
    ceilings[TextIn(event->body, "transport")] = {TextIn(event->body, "name"),
                                                  NumberIn(event->body, "bytes_per_second")};
  }
  if (!ceilings.empty()) return ceilings;
  return Error(absl::StatusCode::kUnavailable, "NO_CEILING",
               absl::StrCat("the ceiling could not be measured; the log of syncopate-bench-ceiling ends with\n",
                            child->LogTail()));
}

}  // namespace

absl::StatusOr<std::map<std::string, Ceiling>> MeasureCeilings(const SyncCase& sync_case, int64_t weight_bytes,
                                                               int devices, const std::string& binary_dir,
                                                               const std::string& work_dir, absl::Duration limit) {
  if (!sync_case.cpu) {
    return MeasureOnGpus(sync_case, weight_bytes, devices, binary_dir, work_dir, limit);
  }
  const int64_t bytes = std::min(weight_bytes / sync_case.tensor_parallel, kLoopbackBytes);
  SYNCOPATE_ASSIGN_OR_RETURN(const double rate, LoopbackRate(sync_case.receivers(), bytes));
  return std::map<std::string, Ceiling>{{"grpc", {"TCP over loopback", rate}}};
}

}  // namespace syncopate::bench
