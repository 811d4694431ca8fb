#include "services/telemetry/rollout_metrics.h"

#include <prometheus/metric_family.h>

#include <utility>

namespace syncopate::telemetry {
namespace {

using Labels = std::vector<prometheus::ClientMetric::Label>;

prometheus::MetricFamily Family(const char* name, const char* help, prometheus::MetricType type) {
  prometheus::MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  return family;
}

void AddSample(prometheus::MetricFamily* family, const Labels& labels, double value) {
  prometheus::ClientMetric metric;
  metric.label = labels;
  metric.gauge.value = value;
  metric.counter.value = value;
  family->metric.push_back(std::move(metric));
}

prometheus::MetricFamily Gauge(const char* name, const char* help, const Labels& labels, double value) {
  prometheus::MetricFamily family = Family(name, help, prometheus::MetricType::Gauge);
  AddSample(&family, labels, value);
  return family;
}

prometheus::MetricFamily Counter(const char* name, const char* help, double value) {
  prometheus::MetricFamily family = Family(name, help, prometheus::MetricType::Counter);
  AddSample(&family, {}, value);
  return family;
}

}  // namespace

std::vector<prometheus::MetricFamily> RolloutCollector::Collect() const {
  RolloutFigures now = read_();
  auto number = [](int64_t value) { return static_cast<double>(value); };
  Labels model = {{"model_name", model_name_}};
  Labels role = {{"role", "rollouter"}};
  prometheus::MetricFamily phases = Family("syncopate_rollouter_phase_seconds_total",
                                           "Time of the decode loop by phase", prometheus::MetricType::Counter);
  AddSample(&phases, {{"phase", "decode"}}, now.busy_seconds);
  AddSample(&phases, {{"phase", "idle"}}, now.idle_seconds);
  prometheus::MetricFamily memory =
      Family("syncopate_rollouter_memory_bytes", "Bytes held for weights and KV cache", prometheus::MetricType::Gauge);
  AddSample(&memory, {{"kind", "weights"}}, number(now.weight_bytes));
  AddSample(&memory, {{"kind", "kv_cache"}}, number(now.kv_bytes));
  return {
      Gauge("vllm:num_requests_running", "Sequences that are being decoded", model, number(now.running_sequences)),
      Gauge("vllm:num_requests_waiting", "Sequences that wait for a slot", model, number(now.waiting_sequences)),
      Gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1", model, now.kv_usage),
      Gauge("syncopate_policy_version_step", "Training step of the newest policy version that this role holds", role,
            number(now.serving.step)),
      Gauge("syncopate_policy_version_epoch", "Epoch of the newest policy version that this role holds", role,
            number(now.serving.epoch)),
      Counter("syncopate_generated_tokens_total", "Tokens generated", number(now.generated_tokens)),
      Counter("syncopate_groups_submitted_total", "Groups sent to the trainer", number(now.groups_submitted)),
      Counter("syncopate_installs_total", "Policy versions taken into use", number(now.installs)),
      std::move(phases),
      std::move(memory),
  };
}

ReceiveMetrics::ReceiveMetrics(prometheus::Registry& registry)
    : bytes_(AddCounter(registry, "syncopate_weight_received_bytes_total", "Bytes of weights received")),
      seconds_(AddCounter(registry, "syncopate_weight_receive_seconds_total",
                          "Time that receiving weights took, connecting and verifying left out")) {}

InstallMetrics::InstallMetrics(prometheus::Registry& registry)
    : pause_(prometheus::BuildHistogram()
                 .Name("syncopate_generation_pause_seconds")
                 .Help("How long one install kept the decode loop from running")
                 .Register(registry)
                 .Add({}, prometheus::Histogram::BucketBoundaries{.00001, .000025, .00005, .0001, .00025, .0005, .001,
                                                                  .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5})) {}

}  // namespace syncopate::telemetry
