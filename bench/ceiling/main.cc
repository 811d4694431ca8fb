// syncopate-bench-ceiling CASE: measures copy engines and NCCL between GPUs in the pattern of a weight sync, one JSON
// object a line. `syncopate bench sync` starts it before its own processes, so that both figures come from one run.
//
// CASE: {"sources": [devices], "receivers": [devices], "replicas": M, "bytes": into each receiver, "transport": "ipc",
// "nccl" or "auto" for both}

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"
#include "base/strict_json.h"
#include "bench/ceiling/copy_ceiling.h"
#include "bench/ceiling/nccl_ceiling.h"

namespace syncopate::bench {
namespace {

using nlohmann::json;

absl::Status BadCase() {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_CASE",
               "the case is not as the top of bench/ceiling/main.cc says; 'syncopate bench sync' makes it");
}

bool ReadDevices(const json& list, std::vector<int>* devices) {
  if (!list.is_array() || list.empty()) return false;
  for (const json& device : list) {
    if (!device.is_number_integer()) return false;
    devices->push_back(device.get<int>());
  }
  return true;
}

absl::StatusOr<CeilingCase> GetCase(const json& object) {
  CeilingCase ceiling_case;
  for (const char* key : {"sources", "receivers", "replicas", "bytes", "transport"}) {
    if (!object.contains(key)) return BadCase();
  }
  const bool good = ReadDevices(object["sources"], &ceiling_case.sources) &&
                    ReadDevices(object["receivers"], &ceiling_case.receivers) &&
                    object["replicas"].is_number_integer() && object["bytes"].is_number_integer();
  if (!good) return BadCase();
  ceiling_case.replicas = object["replicas"].get<int>();
  // Parts start on aligned boundaries, as weights do.
  const int64_t unit = 256 * static_cast<int64_t>(ceiling_case.sources.size());
  ceiling_case.bytes = object["bytes"].get<int64_t>() / unit * unit;
  if (ceiling_case.replicas < 1 || ceiling_case.bytes <= 0 ||
      ceiling_case.receivers.size() % static_cast<size_t>(ceiling_case.replicas) != 0) {
    return BadCase();
  }
  return ceiling_case;
}

void Print(const CeilingCase& ceiling_case, const char* transport, const char* name,
           const absl::StatusOr<double>& seconds) {
  json line = {{"event", "ceiling"}, {"transport", transport}, {"name", name}};
  if (seconds.ok()) {
    line["bytes_per_second"] = static_cast<double>(ceiling_case.bytes) / *seconds;
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  } else {
    std::fprintf(stderr, "%s: %s\n", name, seconds.status().ToString().c_str());
  }
}

absl::Status Run(const std::string& text) {
  SYNCOPATE_ASSIGN_OR_RETURN(const json object, ParseStrictJson(text, {}));
  SYNCOPATE_ASSIGN_OR_RETURN(const CeilingCase ceiling_case, GetCase(object));
  const std::string transport = object["transport"].is_string() ? object["transport"].get<std::string>() : "auto";
  const bool relayed = ceiling_case.replicas > static_cast<int>(ceiling_case.sources.size());
  if (transport != "nccl") {
    SYNCOPATE_RETURN_IF_ERROR(EnablePeerAccess(ceiling_case));
    Print(ceiling_case, "ipc", relayed ? "copy engines, chain" : "copy engines, rounds of matchings",
          relayed ? ChainCopySeconds(ceiling_case) : DirectCopySeconds(ceiling_case));
  }
  if (transport != "ipc") {
    Print(ceiling_case, "nccl", relayed ? "NCCL broadcast" : "NCCL send and receive, one group",
          relayed ? BroadcastNcclSeconds(ceiling_case) : GroupedNcclSeconds(ceiling_case));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace syncopate::bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: syncopate-bench-ceiling CASE (see 'syncopate bench sync')\n");
    return 2;
  }
  const absl::Status status = syncopate::bench::Run(argv[1]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
