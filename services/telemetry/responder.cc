#include "services/telemetry/responder.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::telemetry {
namespace {

using Sources = std::vector<std::shared_ptr<const prometheus::Collectable>>;

std::string Collect(const Sources& sources) {
  std::vector<prometheus::MetricFamily> families;
  for (const auto& source : sources) {
    std::vector<prometheus::MetricFamily> collected = source->Collect();
    std::move(collected.begin(), collected.end(), std::back_inserter(families));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsResponder>> MetricsResponder::Start(const Options& options, Sources sources) {
  auto answer = [probes = options.probes, sources = std::move(sources)](const HttpRequest& request) {
    constexpr char kText[] = "text/plain; charset=utf-8";
    constexpr char kPages[] = "/metrics, /livez and /readyz";
    if (request.code != 200) return HttpRefusal(request.code, kPages);
    if (request.path == "/metrics") {
      return HttpPage(200, "text/plain; version=0.0.4; charset=utf-8", Collect(sources));
    }
    auto probe = probes.find(request.path);
    if (probe == probes.end()) return HttpRefusal(404, kPages);
    const absl::Status status = probe->second();
    // Kubernetes decides by the code and shows the text in its events.
    if (status.ok()) return HttpPage(200, kText, "ok\n");
    return HttpPage(503, kText, absl::StrCat(std::string(status.message()), "\n"));
  };
  SYNCOPATE_ASSIGN_OR_RETURN(auto responder, HttpResponder::Start({.address = options.address,
                                                                   .insecure_bind = options.insecure_bind,
                                                                   .max_connections = options.max_connections,
                                                                   .request_timeout = options.request_timeout,
                                                                   .timeout = options.timeout},
                                                                  std::move(answer)));
  return std::unique_ptr<MetricsResponder>(new MetricsResponder(std::move(responder)));
}

}  // namespace syncopate::telemetry
