#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace syncopate::gateway {

struct UpstreamRequest {
  std::string url;
  std::string method;  // GET or POST
  std::string authorization;
  std::string content_type;
  std::shared_ptr<const std::string> body;
};

struct UpstreamHead {
  int code = 0;
  std::string content_type;
  std::vector<std::pair<std::string, std::string>> headers;  // Retry-After, WWW-Authenticate and Allow, where given
};

// Hears of one request; called on the upstream's thread, must not block.
class UpstreamListener {
 public:
  virtual ~UpstreamListener() = default;
  // The first bytes of the body are there, or its end. Called once, or never.
  virtual void OnHead(const UpstreamHead& head) = 0;
  // False: the bytes are not taken; they come again after Resume().
  virtual bool OnBody(absl::string_view bytes) = 0;
  // The last call. OK: the response is whole. UNAVAILABLE (reason UNREACHABLE if there was no connection, else
  // UPSTREAM_FAILED).
  virtual void OnEnd(const absl::Status& status) = 0;
};

// Sends HTTP requests and gives their responses as they come: one thread that drives libcurl's multi interface, with
// connections that are kept open. Redirects are not followed, the environment's proxy is not used. A request has no time
// limit, as an answer may take long; a host that is gone is noticed by TCP's keepalive. Thread-safe.
//
// One thread carries all requests: it only copies bytes. If one core is not enough, run a second gateway; the two share
// nothing.
class Upstream {
 public:
  struct Options {
    absl::Duration connect_timeout = absl::Seconds(5);
  };

  // UNAVAILABLE (reason NO_CURL) if libcurl cannot start.
  static absl::StatusOr<std::unique_ptr<Upstream>> Start(const Options& options);
  ~Upstream();  // joins the thread; what is under way ends without a call of its listener

  // Returns a number for the following two.
  uint64_t Begin(UpstreamRequest request, std::shared_ptr<UpstreamListener> listener);
  void Resume(uint64_t id);
  // Ends it without further calls of its listener, but for one that runs already.
  void Cancel(uint64_t id);

 private:
  class Loop;
  struct Shared;

  Upstream(std::shared_ptr<Shared> shared, std::unique_ptr<Loop> loop);

  const std::shared_ptr<Shared> shared_;
  const std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace syncopate::gateway
