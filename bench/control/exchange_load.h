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

// Rollouters without an engine, which send answers to a trainer as fast as it takes them: one Exchange stream each,
// over its own connection, with at most `window` unacknowledged answers. Thread-safe.
class ExchangeLoad {
 public:
  enum class Answers : uint8_t {
    kLate,    // to leases that nobody has: decoded, judged, and refused with LEASE_EXPIRED, without the disk
    kLeased,  // to each lease on arrival: acknowledged when they are durable
  };
  struct Options {
    std::string address;  // host:port
    std::string run_id;
    rpc::ChannelOptions channel = {};
    Answers answers = Answers::kLate;
    int32_t streams = 4;
    int32_t window = 32;
    int32_t message_bytes = 16 << 10;  // the largest size of an answer, nearly reached
    int32_t samples = 4;               // samples of one answer
  };

  // INVALID_ARGUMENT reason BAD_ADDRESS or BAD_OPTIONS.
  static absl::StatusOr<std::unique_ptr<ExchangeLoad>> Start(const Options& options);
  ~ExchangeLoad();  // returns when all streams have ended
  ExchangeLoad(const ExchangeLoad&) = delete;
  ExchangeLoad& operator=(const ExchangeLoad&) = delete;

  // The answers with the expected acknowledgement since the last call, or since the start; their latency is the time
  // from passing them to the stream until the acknowledgement. Failed: other acknowledgements, and streams that ended.
  LoadTotals TakeTotals();

  // The size of one answer on the wire.
  int64_t answer_bytes() const { return answer_bytes_; }

 private:
  class Rollouter;
  ExchangeLoad() = default;

  std::vector<std::shared_ptr<Rollouter>> rollouters_;
  int64_t answer_bytes_ = 0;
};

}  // namespace syncopate::bench
