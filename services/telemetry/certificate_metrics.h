#pragma once

#include <prometheus/collectable.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "services/auth/transport_security.h"

namespace syncopate::telemetry {

// syncopate_certificate_expiry_timestamp_seconds{role}: the expiry of the certificate that this process shows now.
// Absent without a certificate.
class CertificateCollector final : public prometheus::Collectable {
 public:
  CertificateCollector(std::string role, std::shared_ptr<const auth::TransportSecurity> security)
      : role_(std::move(role)), security_(std::move(security)) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::string role_;
  const std::shared_ptr<const auth::TransportSecurity> security_;
};

}  // namespace syncopate::telemetry
