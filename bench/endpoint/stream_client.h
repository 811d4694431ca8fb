#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

// A client of the endpoint for benchmarks: one thread, many connections of HTTP/1.1.
namespace syncopate::bench {

// What streams have brought, over all of them.
struct StreamFigures {
  int64_t events = 0;  // that had a token
  double seconds = 0;  // from the first request to the last event
  // Microseconds from the moment that a token's id names (NowStamp) to its arrival here.
  std::vector<int32_t> latencies = {};
};

// Asks for `streams` answers of `tokens` tokens at once, one a connection, and reads them as they come. Blocks.
// UNAVAILABLE if a connection breaks or an answer is not 200; DEADLINE_EXCEEDED after `within`; INTERNAL if an answer
// has another number of tokens.
absl::StatusOr<StreamFigures> ReadStreams(uint16_t port, int streams, int64_t tokens, absl::Duration within);

// Asks for `rounds` answers of one token, one after the other on one connection; gives the microseconds from each
// request to the event with its token. Errors as above.
absl::StatusOr<std::vector<int32_t>> TimeFirstTokens(uint16_t port, int rounds, absl::Duration within);

}  // namespace syncopate::bench
