#include "services/telemetry/rollout_metrics.h"

#include <prometheus/metric_family.h>

#include <iterator>
#include <limits>
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
  // The family's type selects which of the two is shown.
  metric.gauge.value = value;
  metric.counter.value = value;
  family->metric.push_back(std::move(metric));
}

prometheus::MetricFamily Gauge(const char* name, const char* help, const Labels& labels, double value) {
  prometheus::MetricFamily family = Family(name, help, prometheus::MetricType::Gauge);
  AddSample(&family, labels, value);
  return family;
}

prometheus::MetricFamily Counter(const char* name, const char* help, double value, const Labels& labels = {}) {
  prometheus::MetricFamily family = Family(name, help, prometheus::MetricType::Counter);
  AddSample(&family, labels, value);
  return family;
}

prometheus::MetricFamily Histogram(const char* name, const char* help, const Labels& labels,
                                   const HistogramFigures& figures) {
  prometheus::MetricFamily family = Family(name, help, prometheus::MetricType::Histogram);
  prometheus::ClientMetric metric;
  metric.label = labels;
  uint64_t up_to = 0;  // buckets are cumulative
  for (size_t i = 0; i < figures.counts.size(); ++i) {
    up_to += static_cast<uint64_t>(figures.counts[i]);
    const bool last = i == figures.bounds.size();  // the last bucket has no upper bound
    metric.histogram.bucket.push_back({up_to, last ? std::numeric_limits<double>::infinity() : figures.bounds[i]});
  }
  metric.histogram.sample_count = up_to;
  metric.histogram.sample_sum = figures.sum;
  family.metric.push_back(std::move(metric));
  return family;
}

}  // namespace

// Uses the names of vLLM's metrics, so that dashboards and routers made for vLLM work unchanged.
std::vector<prometheus::MetricFamily> RolloutCollector::VllmFamilies(const RolloutFigures& now) const {
  auto number = [](int64_t value) { return static_cast<double>(value); };
  const Labels model = {{"model_name", model_name_}};
  prometheus::MetricFamily finished =
      Family("vllm:request_success_total", "Samples that ended, by how", prometheus::MetricType::Counter);
  auto add_finished = [&](const char* reason, int64_t count) {
    AddSample(&finished, {{"model_name", model_name_}, {"finished_reason", reason}}, number(count));
  };
  add_finished("stop", now.finished_by_stop);
  add_finished("length", now.finished_by_length);
  add_finished("abort", now.finished_by_abort);
  return {
      Gauge("vllm:num_requests_running", "Sequences that are being decoded", model, number(now.running_sequences)),
      Gauge("vllm:num_requests_waiting", "Sequences that wait for a slot", model, number(now.waiting_sequences)),
      Gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1", model, now.kv_usage),
      Counter("vllm:prefix_cache_queries_total", "Tokens that were looked for among kept prefixes",
              number(now.prompt_tokens), model),
      Counter("vllm:prefix_cache_hits_total", "Of them, tokens that were there", number(now.prefix_tokens), model),
      Counter("vllm:num_preemptions_total", "Sequences that made room for others and began again",
              number(now.preemptions), model),
      Counter("vllm:prompt_tokens_total", "Tokens of prompts, computed or found, again after a preemption",
              number(now.prompt_tokens), model),
      Counter("vllm:generation_tokens_total", "Tokens generated", number(now.generated_tokens), model),
      Histogram("vllm:time_to_first_token_seconds", "Time from a request's arrival to a sample's first token", model,
                now.time_to_first_token),
      Histogram("vllm:time_per_output_token_seconds", "Time from one token of a sample to the next", model,
                now.time_per_output_token),
      std::move(finished),
  };
}

std::vector<prometheus::MetricFamily> RolloutCollector::Collect() const {
  RolloutFigures now = read_();  // once for each scrape, so that the figures belong to one moment
  auto number = [](int64_t value) { return static_cast<double>(value); };
  Labels role = {{"role", "rollouter"}};
  prometheus::MetricFamily phases = Family("syncopate_rollouter_phase_seconds_total",
                                           "Time of the decode loop by phase", prometheus::MetricType::Counter);
  AddSample(&phases, {{"phase", "decode"}}, now.busy_seconds);
  AddSample(&phases, {{"phase", "idle"}}, now.idle_seconds);
  prometheus::MetricFamily memory =
      Family("syncopate_rollouter_memory_bytes",
             "Bytes allocated for weights and KV cache, and in host memory for keys and values of preempted sequences",
             prometheus::MetricType::Gauge);
  AddSample(&memory, {{"kind", "weights"}}, number(now.weight_bytes));
  AddSample(&memory, {{"kind", "kv_cache"}}, number(now.kv_bytes));
  AddSample(&memory, {{"kind", "host_kv_cache"}}, number(now.host_kv_bytes));
  prometheus::MetricFamily preemptions = Family(
      "syncopate_preemptions_total", "Sequences that made room for others, by what became of their keys and values",
      prometheus::MetricType::Counter);
  AddSample(&preemptions, {{"kind", "swap"}}, number(now.swaps));
  AddSample(&preemptions, {{"kind", "recompute"}}, number(now.preemptions - now.swaps));
  prometheus::MetricFamily yielded =
      Family("syncopate_yielded_sequences_total",
             "Sequences that left the device for a turn of the trainer, by what became of their keys and values",
             prometheus::MetricType::Counter);
  AddSample(&yielded, {{"kind", "swap"}}, number(now.yielded_swaps));
  AddSample(&yielded, {{"kind", "recompute"}}, number(now.yielded_sequences - now.yielded_swaps));
  prometheus::MetricFamily environment = Family(
      "syncopate_environment_events_total",
      "Of the worker's environments: episodes opened, turns answered, calls failed, cancels sent, answered and lost",
      prometheus::MetricType::Counter);
  AddSample(&environment, {{"kind", "opened"}}, number(now.episodes_opened));
  AddSample(&environment, {{"kind", "turn"}}, number(now.turns_answered));
  AddSample(&environment, {{"kind", "failed"}}, number(now.calls_failed));
  AddSample(&environment, {{"kind", "cancel"}}, number(now.cancels_sent));
  AddSample(&environment, {{"kind", "cancel_answered"}}, number(now.cancels_answered));
  AddSample(&environment, {{"kind", "cancel_lost"}}, number(now.cancels_lost));
  std::vector<prometheus::MetricFamily> families = {
      Gauge("syncopate_policy_version_step", "Training step of the newest policy version that this role has", role,
            number(now.serving.step)),
      Gauge("syncopate_policy_version_epoch", "Epoch of the newest policy version that this role has", role,
            number(now.serving.epoch)),
      Counter("syncopate_generated_tokens_total", "Tokens generated", number(now.generated_tokens)),
      Counter("syncopate_groups_submitted_total", "Groups sent to the trainer", number(now.groups_submitted)),
      Counter("syncopate_installs_total", "Policy versions taken into use", number(now.installs)),
      Gauge("syncopate_host_kv_usage_ratio", "Share of rollout.host_kv_memory in use, 0 to 1", {}, now.host_kv_usage),
      Gauge("syncopate_parked_sequences", "Samples that wait for their environment between two turns, without a slot",
            {}, number(now.parked_sequences)),
      Gauge("syncopate_lent_kv_bytes", "Memory of keys and values that is lent to the new weights of a sync now", {},
            number(now.lent_bytes)),
      Counter("syncopate_kv_lendings_total", "Times that keys and values lent memory to the new weights of a sync",
              number(now.lendings)),
      Counter("syncopate_kv_lent_seconds_total", "Time for which keys and values lent memory to new weights",
              now.lent_seconds),
      Counter("syncopate_kv_moved_blocks_total", "Blocks of keys and values that were copied out of the lent part",
              number(now.moved_blocks)),
      std::move(environment),
      std::move(yielded),
      std::move(phases),
      std::move(memory),
      std::move(preemptions),
  };
  std::vector<prometheus::MetricFamily> vllm = VllmFamilies(now);
  std::move(vllm.begin(), vllm.end(), std::back_inserter(families));
  return families;
}

std::vector<prometheus::MetricFamily> EndpointCollector::Collect() const {
  const EndpointFigures now = read_();
  auto number = [](int64_t value) { return static_cast<double>(value); };
  prometheus::MetricFamily requests = Family(
      "syncopate_endpoint_requests_total",
      "Requests of OpenAI's clients for answers that ended: answered, refused (4xx), too many at once (429), failed "
      "(5xx, or in the middle of a stream), or left by their client",
      prometheus::MetricType::Counter);
  AddSample(&requests, {{"result", "ok"}}, number(now.answered));
  AddSample(&requests, {{"result", "refused"}}, number(now.refused));
  AddSample(&requests, {{"result", "busy"}}, number(now.busy));
  AddSample(&requests, {{"result", "failed"}}, number(now.failed));
  AddSample(&requests, {{"result", "left"}}, number(now.left));
  prometheus::MetricFamily tokens = Family("syncopate_endpoint_tokens_total",
                                           "Tokens of OpenAI's clients: of their prompts, and of the answers to them",
                                           prometheus::MetricType::Counter);
  AddSample(&tokens, {{"kind", "prompt"}}, number(now.prompt_tokens));
  AddSample(&tokens, {{"kind", "completion"}}, number(now.completion_tokens));
  return {std::move(requests), std::move(tokens),
          Gauge("syncopate_endpoint_requests_under_way", "Requests of OpenAI's clients for answers that have not ended",
                {}, number(now.under_way)),
          Histogram("syncopate_endpoint_time_to_first_token_seconds",
                    "Time from the arrival of a request of OpenAI's clients to the first token of its answers", {},
                    now.time_to_first_token)};
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
