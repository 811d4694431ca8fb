#pragma once

#include <prometheus/collectable.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/http/http_responder.h"

namespace syncopate::telemetry {

// Answers GET of /metrics with Prometheus' text format, and GET of a probe with "ok", or with 503 and the reason as
// text. Serves nothing else. HttpResponder owns the thread and sets the limits.
class MetricsResponder {
 public:
  struct Options {
    std::string address = "127.0.0.1:0";  // this and the next options are HttpResponder's
    bool insecure_bind = false;
    int max_connections = 32;
    absl::Duration request_timeout = absl::Seconds(1);
    absl::Duration timeout = absl::Seconds(2);
    // Keyed by path, such as "/livez". Called on the responder's thread; must not block.
    std::map<std::string, std::function<absl::Status()>> probes = {};
  };

  // Listens and serves the metrics that `sources` collect at each request, on the responder's thread. Errors of
  // HttpResponder.
  static absl::StatusOr<std::unique_ptr<MetricsResponder>> Start(
      const Options& options, std::vector<std::shared_ptr<const prometheus::Collectable>> sources);

  std::string address() const { return responder_->address(); }  // host:port as bound

  // Closes every connection and joins the thread; idempotent, not thread-safe. The destructor calls it.
  void Stop() { responder_->Stop(); }

 private:
  explicit MetricsResponder(std::unique_ptr<HttpResponder> responder) : responder_(std::move(responder)) {}

  const std::unique_ptr<HttpResponder> responder_;
};

}  // namespace syncopate::telemetry
