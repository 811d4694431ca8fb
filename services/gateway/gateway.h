#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/gateway/backends.h"
#include "services/gateway/upstream.h"
#include "services/http/http_server.h"

namespace syncopate::gateway {

// An HTTP server that passes each request to one of several OpenAI endpoints (docs/endpoint.md, "One address for all
// rollouters"): body and bearer token as they came, the response as it comes. A request is tried at another endpoint only
// while no byte of an answer has come, that is if the first cannot be reached, breaks off, or refuses it as busy or not
// ready (429, 503). A stream that breaks later ends with an event that holds an error. Thread-safe.
class Gateway {
 public:
  struct Options {
    std::string address = "127.0.0.1:0";
    absl::Duration connect_timeout = absl::Seconds(5);
    absl::Duration rest = absl::Seconds(1);     // an endpoint that cannot be reached is left out for so long
    int64_t max_body_bytes = int64_t{1} << 30;  // of all requests that are under way; one beyond them gets 503
    // Judges the value of an Authorization header; null: everybody on this machine is let in, which needs a loopback
    // address, and a request must name that as its Host. The endpoints judge the header too.
    std::function<absl::Status(const std::string& authorization)> judge = nullptr;
  };

  // Listens and serves, at first without endpoints. Errors of HttpServer and Upstream; INVALID_ARGUMENT (reason
  // NOT_LOOPBACK).
  static absl::StatusOr<std::unique_ptr<Gateway>> Start(Options options);
  ~Gateway() { Stop(); }

  std::string url() const;  // "http://127.0.0.1:8000/v1"
  // The endpoints that requests go to from now on, as host:port.
  void SetEndpoints(const std::set<std::string>& addresses) { backends_->Set(addresses); }

  // Ends all requests and joins the threads. Idempotent, not thread-safe.
  void Stop();

 private:
  explicit Gateway(Options options)
      : options_(std::move(options)), backends_(std::make_shared<Backends>(options_.rest)) {}

  http::Response Guard(const http::Request& request) const;
  void Handle(const std::shared_ptr<http::Exchange>& exchange);
  http::Response Health() const;

  const Options options_;
  const std::shared_ptr<Backends> backends_;
  const std::shared_ptr<std::atomic<int64_t>> body_bytes_ = std::make_shared<std::atomic<int64_t>>(0);
  std::unique_ptr<Upstream> upstream_;
  std::unique_ptr<http::HttpServer> server_;
};

}  // namespace syncopate::gateway
