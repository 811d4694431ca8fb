#pragma once

#include <prometheus/collectable.h>

#include <vector>

namespace syncopate::telemetry {

// Prometheus' standard process_* metrics, read from /proc at each scrape: CPU seconds, resident and virtual memory,
// open and allowed descriptors, threads, start time. A metric that cannot be read is left out.
class ProcessCollector final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace syncopate::telemetry
