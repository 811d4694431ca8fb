#pragma once

#include <prometheus/collectable.h>

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "services/rpc/accept/acceptor.h"
#include "services/telemetry/http_request.h"

namespace syncopate::telemetry {

// Answers GET over HTTP/1.x: /metrics with Prometheus' text format, and the probes that it is given with "ok" or with
// 503 and the reason, as text. Nothing else. One thread serves all connections without blocking on any: each has
// `request_timeout` to ask and then `timeout` to take the answer, and when all places are taken, the oldest gives way
// to the newest. An answer takes milliseconds, so those who only hold a place keep nobody out.
class MetricsResponder {
 public:
  struct Options {
    std::string address = "127.0.0.1:0";  // host:port, host a literal address; port 0 picks one
    bool insecure_bind = false;           // allow an address that is not loopback
    int max_connections = 32;             // a further one takes the place of the oldest
    absl::Duration request_timeout = absl::Seconds(1);
    absl::Duration timeout = absl::Seconds(2);
    // By path, such as "/livez". Called on the responder's thread; must not block.
    std::map<std::string, std::function<absl::Status()>> probes = {};
  };

  // Listens and serves what `sources` collect at the time of each request; they are called on the responder's thread.
  // INVALID_ARGUMENT (reason BAD_ADDRESS, INSECURE_BIND or BAD_OPTION), ALREADY_EXISTS (reason ADDRESS_IN_USE).
  static absl::StatusOr<std::unique_ptr<MetricsResponder>> Start(
      const Options& options, std::vector<std::shared_ptr<const prometheus::Collectable>> sources);
  ~MetricsResponder();  // Stop
  MetricsResponder(const MetricsResponder&) = delete;
  MetricsResponder& operator=(const MetricsResponder&) = delete;

  std::string address() const { return acceptor_->endpoint().ToString(); }  // host:port as bound

  // Closes every connection and joins the thread; idempotent, not thread-safe.
  void Stop();

 private:
  struct Connection {
    int fd = -1;
    absl::Time deadline;
    std::string received;
    std::string answer;  // not empty: reading is over
    size_t sent = 0;
    bool lingering = false;  // all sent; waits for the client to close, so that no reset eats the answer
    bool finished = false;
  };

  MetricsResponder() = default;
  void Loop();
  void Admit();
  void Advance(Connection& connection, bool timed_out) const;
  void Receive(Connection& connection) const;
  void Send(Connection& connection) const;
  std::string Answer(const HttpRequest& request) const;
  std::string Collect() const;

  Options options_;
  std::vector<std::shared_ptr<const prometheus::Collectable>> sources_;
  std::unique_ptr<rpc::Acceptor> acceptor_;
  int wake_ = -1;                      // eventfd that ends the loop
  std::list<Connection> connections_;  // of the thread alone
  std::thread thread_;
};

}  // namespace syncopate::telemetry
