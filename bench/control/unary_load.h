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

// The work of a load during some time.
struct LoadTotals {
  int64_t ok = 0;
  int64_t failed = 0;
  absl::Status first_failure;  // OK if none failed
  LatencyHistogram latency;    // of the successful calls

  void Merge(const LoadTotals& other);
};

// Callers that repeatedly ask a synchronizer for its status, each as soon as it has its answer: the number of calls in
// flight is the number of callers. Thread-safe.
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
  ~UnaryLoad();  // returns when all calls have ended
  UnaryLoad(const UnaryLoad&) = delete;
  UnaryLoad& operator=(const UnaryLoad&) = delete;

  // The calls since the last TakeTotals, or since the start.
  LoadTotals TakeTotals();

 private:
  class Caller;
  UnaryLoad() = default;

  std::vector<std::unique_ptr<Caller>> callers_;
};

}  // namespace syncopate::bench
