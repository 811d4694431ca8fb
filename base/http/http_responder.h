#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/acceptor.h"
#include "base/clock.h"
#include "base/http/http_request.h"

namespace syncopate {

// Answers GET requests over HTTP/1.x with the result of a function. One thread serves all connections and blocks on
// none: each has `request_timeout` to send its request and then `timeout` to take the answer. When `max_connections`
// are open, a new connection replaces the oldest. An answer takes milliseconds, so idle connections keep no client out.
class HttpResponder {
 public:
  struct Options {
    std::string what = "metrics";         // names what is served, in error messages
    std::string address = "127.0.0.1:0";  // host:port, host a literal address; port 0 picks one
    bool insecure_bind = false;           // allow an address that is not loopback
    int max_connections = 32;             // one more connection replaces the oldest
    size_t max_request_bytes = kMaxHttpRequestBytes;
    absl::Duration request_timeout = absl::Seconds(1);
    absl::Duration timeout = absl::Seconds(2);
  };
  // Makes the whole response (HttpPage) to a complete request; its code is 200, or the status to refuse it with. Called
  // on the responder's thread; must not block.
  using Answer = std::function<std::string(const HttpRequest&)>;

  // Listens and serves. INVALID_ARGUMENT (reason BAD_ADDRESS, INSECURE_BIND or BAD_OPTIONS), ALREADY_EXISTS (reason
  // ADDRESS_IN_USE).
  static absl::StatusOr<std::unique_ptr<HttpResponder>> Start(const Options& options, Answer answer);
  ~HttpResponder();  // Stop
  HttpResponder(const HttpResponder&) = delete;
  HttpResponder& operator=(const HttpResponder&) = delete;

  std::string address() const { return acceptor_->endpoint().ToString(); }  // host:port as bound

  // Closes every connection and joins the thread; idempotent, not thread-safe.
  void Stop();

 private:
  struct Connection {
    int fd = -1;
    absl::Time deadline;
    std::string received;
    std::string answer;  // not empty: the request has been read
    size_t sent = 0;
    bool lingering = false;  // all sent; waits for the client to close, so that no TCP reset discards the answer
    bool finished = false;
  };

  HttpResponder() = default;
  void Loop();
  void Admit();
  void Advance(Connection& connection, bool timed_out) const;
  void Receive(Connection& connection) const;
  void Send(Connection& connection) const;

  Options options_;
  Answer answer_;
  std::unique_ptr<Acceptor> acceptor_;
  int wake_ = -1;                      // eventfd that ends the loop
  std::list<Connection> connections_;  // used by the thread only
  std::thread thread_;
};

}  // namespace syncopate
