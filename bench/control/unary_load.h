#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/latency_histogram.h"
#include "services/rpc/channel.h"

namespace syncopate::bench {

// What a load has done in some time.
struct LoadTotals {
  int64_t ok = 0;
  int64_t failed = 0;
  absl::Status first_failure;  // OK if none did
  LatencyHistogram latency;    // of those that went well

  void Merge(const LoadTotals& other);
};

// Callers that ask a synchronizer for its status over and over, each as soon as it has been answered: as many calls are
// in flight as there are callers. Thread-safe.
class UnaryLoad {
 public:
  struct Options {
    std::string address;  // host:port
    rpc::ChannelOptions channel = {};
    int32_t connections = 4;  // callers share them
    int32_t callers = 64;
    absl::Duration call_limit = absl::Seconds(5);
  };

  // INVALID_ARGUMENT reason BAD_ADDRESS or BAD_OPTIONS.
  static absl::StatusOr<std::unique_ptr<UnaryLoad>> Start(const Options& options);
  ~UnaryLoad();  // when all calls have ended
  UnaryLoad(const UnaryLoad&) = delete;
  UnaryLoad& operator=(const UnaryLoad&) = delete;

  // What was done since the last Take, or since the start.
  LoadTotals TakeTotals();

 private:
  class Caller;
  UnaryLoad() = default;

  std::vector<std::unique_ptr<Caller>> callers_;
};

}  // namespace syncopate::bench
