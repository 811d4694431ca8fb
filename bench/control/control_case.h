#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace syncopate::bench {

// Certificates of the benchmark's processes, as the keys of the configuration's section `security`; empty: plaintext.
struct BenchTls {
  std::string cert;  // {role} stands for the process's role
  std::string key;
  std::string ca;

  bool on() const { return !ca.empty(); }
};

// The case that one run of `syncopate bench control` measures.
struct ControlCase {
  // In the order in which they are measured; see ControlParts.
  std::vector<std::string> parts;

  int32_t rounds = 5;                         // number of measurements of each rate; the median counts
  absl::Duration round = absl::Seconds(4);    // duration of each round
  absl::Duration warmup = absl::Seconds(1);   // before the first round
  absl::Duration steady = absl::Seconds(60);  // duration of overload, and of members at rest

  int32_t callers = 64;     // unary: in flight
  int32_t overload = 4;     // this many times as many callers, on the same connections
  int32_t connections = 4;  // unary: callers share them
  int32_t streams = 4;      // for trajectories
  int32_t window = 64;      // unacknowledged answers of a stream
  int32_t message_bytes = 16 << 10;
  int32_t members = 1000;
  BenchTls tls;

  absl::Status Validate() const;  // INVALID_ARGUMENT reason BAD_CASE naming the bad value
};

// The parts. "unary": a synchronizer's GetStatus; "overload": the same call from too many callers; "stream": answers
// that a trainer judges and refuses, so its disk is not used; "ack": answers that it makes durable; "members": many
// rollouters at rest, and GET /metrics meanwhile; "restart": the synchronizer is killed and restarted while they are
// joined.
const std::vector<std::string>& ControlParts();

}  // namespace syncopate::bench
