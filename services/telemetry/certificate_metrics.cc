#include "services/telemetry/certificate_metrics.h"

#include <prometheus/metric_family.h>

#include <optional>

#include "absl/time/time.h"

namespace syncopate::telemetry {

std::vector<prometheus::MetricFamily> CertificateCollector::Collect() const {
  const std::optional<absl::Time> expiry = security_->certificate_expiry();
  if (!expiry.has_value()) return {};
  prometheus::MetricFamily family;
  family.name = "syncopate_certificate_expiry_timestamp_seconds";
  family.help = "When the TLS certificate that this process shows ends, in seconds since 1970";
  family.type = prometheus::MetricType::Gauge;
  prometheus::ClientMetric metric;
  metric.label = {{"role", role_}};
  metric.gauge.value = absl::ToDoubleSeconds(*expiry - absl::UnixEpoch());
  family.metric.push_back(std::move(metric));
  return {family};
}

}  // namespace syncopate::telemetry
