#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/policy_version.h"
#include "bench/control/control_case.h"

namespace syncopate::bench {

inline constexpr char kBenchRunId[] = "bench";
inline constexpr PolicyVersion kBenchVersion = {1, 0};  // the only version that the benchmark's rollouters serve
inline constexpr int32_t kBenchMaxNewTokens = 1 << 20;
inline constexpr int64_t kBenchLateOrdinal = int64_t{1} << 40;  // above the ordinal of every leased prompt

struct DataPeerOptions {
  std::string folder;  // of its log
  std::string listen = "127.0.0.1:0";
  int32_t batch_groups = 256;
  int32_t samples = 4;
  BenchTls tls = {};
};
std::string ToJsonText(const DataPeerOptions& options);
// INVALID_ARGUMENT reason BAD_PEER_OPTIONS.
absl::StatusOr<DataPeerOptions> ParseDataPeerOptions(const std::string& text);

}  // namespace syncopate::bench
