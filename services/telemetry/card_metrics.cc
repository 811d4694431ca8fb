#include "services/telemetry/card_metrics.h"

#include <prometheus/metric_family.h>

#include <utility>

#include "base/log.h"

namespace syncopate::telemetry {
namespace {

// scripts/metrics_doc.py reads both lines.
constexpr char kName[] = "syncopate_card_memory_bytes";
constexpr char kHelp[] =
    "Memory of the GPU in use as this process sees it, by owner; the sum is what the driver counts";

}  // namespace

void CardCollector::Update(const daemon::CardAccount& account, daemon::CardOwners own) {
  absl::StatusOr<daemon::CardOwners> owners = account.List(std::move(own));
  MutexLock lock(&mutex_);
  if (!owners.ok() && !std::exchange(failed_, true)) {
    SYNCOPATE_LOG(kWarning, "%s is not shown: %s", kName, owners.status().ToString());
  }
  if (owners.ok()) failed_ = false;
  owners_ = owners.ok() ? *std::move(owners) : daemon::CardOwners();
}

std::vector<prometheus::MetricFamily> CardCollector::Collect() const {
  prometheus::MetricFamily family;
  family.name = kName;
  family.help = kHelp;
  family.type = prometheus::MetricType::Gauge;
  MutexLock lock(&mutex_);
  if (owners_.empty()) return {};
  for (const auto& [owner, bytes] : owners_) {
    prometheus::ClientMetric metric;
    metric.label = {{"owner", owner}};
    metric.gauge.value = static_cast<double>(bytes);
    family.metric.push_back(std::move(metric));
  }
  return {family};
}

}  // namespace syncopate::telemetry
