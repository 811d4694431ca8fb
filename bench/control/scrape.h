#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncopate::bench {

struct Scrape {
  absl::Duration took;  // from the connection to the last byte
  int64_t bytes = 0;
};

// GET /metrics at host:port as a scraper does, over its own connection. UNAVAILABLE reason NO_METRICS if the answer is
// not 200, or does not come within `limit`. Blocks.
absl::StatusOr<Scrape> ScrapeMetrics(const std::string& address, absl::Duration limit);

}  // namespace syncopate::bench
