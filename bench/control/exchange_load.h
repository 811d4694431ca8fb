#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/control/unary_load.h"
#include "services/rpc/channel.h"

namespace syncopate::bench {

// Rollouters without an engine that send answers to a trainer as fast as it takes them: one Exchange stream each, over
// a connection of its own, and at most `window` answers of which are not acknowledged. Thread-safe.
class ExchangeLoad {
 public:
  enum class Answers : uint8_t {
    kLate,    // to leases that nobody holds: decoded, judged, and refused with LEASE_EXPIRED, without the disk
    kLeased,  // to leases as they come: acknowledged when they are durable
  };
  struct Options {
    std::string address;  // host:port
    std::string run_id;
    rpc::ChannelOptions channel = {};
    Answers answers = Answers::kLate;
    int32_t streams = 4;
    int32_t window = 32;
    int32_t message_bytes = 16 << 10;  // of one answer, at most and nearly
    int32_t samples = 4;               // of one answer
  };

  // INVALID_ARGUMENT reason BAD_ADDRESS or BAD_OPTIONS.
  static absl::StatusOr<std::unique_ptr<ExchangeLoad>> Start(const Options& options);
  ~ExchangeLoad();  // when all streams have ended
  ExchangeLoad(const ExchangeLoad&) = delete;
  ExchangeLoad& operator=(const ExchangeLoad&) = delete;

  // What was acknowledged as it should be since the last Take, or since the start; the latency is from the hand-over to
  // the stream to the acknowledgement. Failed: acknowledged otherwise, or a stream that ended.
  LoadTotals TakeTotals();

  // Of one answer as it is sent.
  int64_t answer_bytes() const { return answer_bytes_; }

 private:
  class Rollouter;
  ExchangeLoad() = default;

  std::vector<std::shared_ptr<Rollouter>> rollouters_;
  int64_t answer_bytes_ = 0;
};

}  // namespace syncopate::bench
