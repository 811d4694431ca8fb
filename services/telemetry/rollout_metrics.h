#pragma once

#include <prometheus/collectable.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "services/telemetry/metric_names.h"

namespace syncopate::telemetry {

// The data of a histogram: counts between bounds; there is one count more than there are bounds.
struct HistogramFigures {
  std::vector<double> bounds;
  std::vector<int64_t> counts;
  double sum = 0;
};

// The state of a rollouter at the time of a scrape. Counts and seconds are totals since the start of the process.
struct RolloutFigures {
  PolicyVersion serving;
  int64_t running_sequences = 0;
  int64_t waiting_sequences = 0;
  int64_t parked_sequences = 0;
  double kv_usage = 0;  // 0 to 1
  int64_t kv_bytes = 0;
  double host_kv_usage = 0;  // 0 to 1
  int64_t host_kv_bytes = 0;
  int64_t weight_bytes = 0;
  int64_t lent_bytes = 0;  // memory of keys and values that new weights have now (sync.install: borrowed)
  int64_t lendings = 0;
  double lent_seconds = 0;
  int64_t moved_blocks = 0;  // blocks of keys and values that were copied out of the lent part
  int64_t generated_tokens = 0;
  int64_t prompt_tokens = 0;  // computed or found as a cached prefix
  int64_t prefix_tokens = 0;  // those found as a cached prefix
  int64_t preemptions = 0;
  int64_t swaps = 0;                     // the preemptions that swapped to host memory
  int64_t yielded_sequences = 0;         // taken off the device for turns of the trainer
  int64_t yielded_swaps = 0;             // of them, swapped to host memory
  HistogramFigures time_to_first_token;  // seconds
  HistogramFigures time_per_output_token;
  int64_t finished_by_stop = 0;  // samples
  int64_t finished_by_length = 0;
  int64_t finished_by_abort = 0;
  int64_t groups_submitted = 0;
  // What the worker's environments did: episodes, turns, failed calls, and cancels that were sent, answered, or whose
  // answer was lost.
  int64_t episodes_opened = 0;
  int64_t turns_answered = 0;
  int64_t calls_failed = 0;
  int64_t cancels_sent = 0;
  int64_t cancels_answered = 0;
  int64_t cancels_lost = 0;
  int64_t installs = 0;
  double busy_seconds = 0;  // the decode loop works
  double idle_seconds = 0;  // the decode loop has no work
};

// Reads the figures at each scrape. Also publishes the metrics of vLLM's engine, under vLLM's names, types, bounds and
// label, so that dashboards and autoscalers made for vLLM work unchanged.
class RolloutCollector final : public prometheus::Collectable {
 public:
  // `read` is called on the responder's thread; it must not block.
  RolloutCollector(std::string model_name, std::function<RolloutFigures()> read)
      : model_name_(std::move(model_name)), read_(std::move(read)) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  std::vector<prometheus::MetricFamily> VllmFamilies(const RolloutFigures& now) const;

  const std::string model_name_;
  const std::function<RolloutFigures()> read_;
};

// The state of a rollouter's OpenAI endpoint at the time of a scrape: totals since the start of the process. All 0 without
// an endpoint.
struct EndpointFigures {
  // Requests for answers that ended, by how.
  int64_t answered = 0;
  int64_t refused = 0;  // 4xx but 429
  int64_t busy = 0;     // 429
  int64_t failed = 0;
  int64_t left = 0;  // the client did
  int64_t under_way = 0;
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  HistogramFigures time_to_first_token;  // seconds, from a request's arrival
};

// Reads the figures at each scrape.
class EndpointCollector final : public prometheus::Collectable {
 public:
  // `read` is called on the responder's thread; it must not block.
  explicit EndpointCollector(std::function<EndpointFigures()> read) : read_(std::move(read)) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::function<EndpointFigures()> read_;
};

// The weights that this rollouter received: syncopate_weight_received_bytes_total and
// syncopate_weight_receive_seconds_total; the ratio of their rates is the bandwidth of its transfers. A copy of this
// object counts into the same two metrics.
class ReceiveMetrics {
 public:
  explicit ReceiveMetrics(prometheus::Registry& registry);
  void Count(int64_t bytes, double seconds) const {
    bytes_.Increment(static_cast<double>(bytes));
    seconds_.Increment(seconds);
  }

 private:
  prometheus::Counter& bytes_;
  prometheus::Counter& seconds_;
};

// syncopate_generation_pause_seconds: for how long one install stopped the decode loop.
class InstallMetrics {
 public:
  explicit InstallMetrics(prometheus::Registry& registry);
  void ObservePause(double seconds) const { pause_.Observe(seconds); }

 private:
  prometheus::Histogram& pause_;
};

}  // namespace syncopate::telemetry
