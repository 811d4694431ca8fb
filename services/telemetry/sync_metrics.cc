#include "services/telemetry/sync_metrics.h"

#include <algorithm>
#include <vector>

#include "synchronizer/transport/transport_traits.h"

namespace syncopate::telemetry {
namespace {

// Labels of syncopate_weight_syncs_total; any other reason counts under the last.
const std::vector<std::string> kResults = {"ok",
                                           "relabelled",
                                           "superseded",
                                           "version_not_staged",
                                           "held",
                                           "deadline",
                                           "not_prepared",
                                           "peer_lost",
                                           "source_lost",
                                           "group_lost",
                                           "member_lost",
                                           "disconnected",
                                           "declared_dead",
                                           "cancelled",
                                           "digest_mismatch",
                                           "non_finite",
                                           "model_mismatch",
                                           "dtype_mismatch",
                                           "layout_mismatch",
                                           "plan_mismatch",
                                           "nccl_mismatch",
                                           "no_common_transport",
                                           "failed"};

const prometheus::Histogram::BucketBoundaries kBuckets = {.001, .0025, .005, .01, .025, .05, .1, .25,
                                                          .5,   1,     2.5,  5,   10,   30,  60, 120};

prometheus::Gauge& Members(prometheus::Registry& registry, const char* role) {
  return prometheus::BuildGauge()
      .Name("syncopate_members_alive")
      .Help("Members that are alive")
      .Register(registry)
      .Add({{"role", role}});
}

}  // namespace

SyncMetrics::SyncMetrics(prometheus::Registry& registry)
    : durations_(prometheus::BuildHistogram()
                     .Name("syncopate_weight_sync_duration_seconds")
                     .Help("Duration of a weight sync to one receiver, by phase; phases that did not run are left out")
                     .Register(registry)),
      bytes_(registry, "syncopate_weight_sync_bytes_total",
             "Bytes of weights that receivers took; the kind mapped was not sent", "kind",
             {"full", "lora", "delta", "mapped"}),
      results_(registry, "syncopate_weight_syncs_total", "Weight syncs to one receiver that ended, by result", "result",
               kResults),
      rehearsals_(
          registry, "syncopate_weight_sync_rehearsals_total",
          "Receivers' parts in rehearsals, by which communicators are formed before a sync needs them, by result",
          "result", {"connected", "not_connected"}),
      last_success_(AddGauge(registry, "syncopate_weight_sync_last_success_timestamp_seconds",
                             "When a receiver last took a version into use, in seconds since 1970")),
      trainers_(Members(registry, "trainer")),
      rollouters_(Members(registry, "rollouter")),
      newest_(registry, "synchronizer") {
  // Makes all series at the start, so that dashboards show zeros instead of gaps.
  for (const auto& [phase, member] : synchronizer::kStages) {
    for (const synchronizer::TransportTraits& traits : synchronizer::kTransports) {
      const std::string transport(traits.name);
      durations_.Add({{"phase", phase}, {"transport", transport}}, kBuckets);
    }
  }
}

void SyncMetrics::Record(const Sync& sync) {
  std::string result = sync.result;
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return std::tolower(c); });
  results_.Increment(result);
  bytes_.Increment("full", static_cast<double>(sync.bytes.full));
  bytes_.Increment("lora", static_cast<double>(sync.bytes.lora));
  bytes_.Increment("delta", static_cast<double>(sync.bytes.delta));
  bytes_.Increment("mapped", static_cast<double>(sync.bytes.mapped));
  if (result == "ok" || result == "relabelled") last_success_.Set(sync.ended_unix_seconds);
  if (synchronizer::FindTransport(sync.transport) == nullptr) return;
  for (const auto& [phase, member] : synchronizer::kStages) {
    const double seconds = sync.seconds.*member;
    if (seconds <= 0) continue;  // a phase that did not run would pull the quantiles down
    durations_.Add({{"phase", phase}, {"transport", sync.transport}}, kBuckets).Observe(seconds);
  }
}

void SyncMetrics::SetMembers(int64_t trainers, int64_t rollouters) {
  trainers_.Set(static_cast<double>(trainers));
  rollouters_.Set(static_cast<double>(rollouters));
}

}  // namespace syncopate::telemetry
