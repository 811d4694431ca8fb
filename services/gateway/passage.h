#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "base/mutex.h"
#include "services/gateway/backends.h"
#include "services/gateway/upstream.h"
#include "services/http/http_server.h"

namespace syncopate::gateway {

// One request on its way through the gateway.
//
//   trying --a response that is not retried--> passing --> ended
//     ^ |--unreachable, 429 or 503, or broken off once, and another endpoint is left--> trying
//     | `--no endpoint is left--> ended with the last refusal, or with 502 or 503
//
// A stream (text/event-stream) passes as it comes; another response passes when it is whole. A client that reads slowly
// holds the endpoint's stream back when kMaxWaitingBytes wait.
class Passage final : public UpstreamListener, public http::StreamSource, public std::enable_shared_from_this<Passage> {
 public:
  static constexpr size_t kMaxWaitingBytes = 1 << 20;
  static constexpr size_t kMaxResponseBytes = 256 << 20;  // of a response that is no stream

  // `upstream` must outlive all calls of the passage. `body_bytes` has the bytes of this request's body added until the
  // request is over.
  Passage(std::shared_ptr<http::Exchange> exchange, std::shared_ptr<Backends> backends, Upstream* upstream,
          std::shared_ptr<std::atomic<int64_t>> body_bytes);

  // Begins the first try. Call once.
  void Begin();

  void OnHead(const UpstreamHead& head) override;
  bool OnBody(absl::string_view bytes) override;
  void OnEnd(const absl::Status& status) override;
  bool Take(std::string* bytes) override;

 private:
  void Leave();
  // False: no endpoint is left.
  bool Try();
  void EndWithError(int code, const std::string& message);

  const std::shared_ptr<http::Exchange> exchange_;
  const std::shared_ptr<Backends> backends_;
  Upstream* const upstream_;
  const std::string caller_;
  UpstreamRequest request_;  // without its url
  std::string path_;
  // The next ones are used by one try at a time.
  std::set<std::string> tried_;
  std::string address_;      // of the endpoint
  http::Response response_;  // of a response that is no stream, so far
  absl::Status last_failure_;
  int breaks_ = 0;  // tries that broke off
  bool streams_ = false;

  Mutex mutex_;
  uint64_t id_ ABSL_GUARDED_BY(mutex_) = 0;              // of the try at the upstream
  std::shared_ptr<void> place_ ABSL_GUARDED_BY(mutex_);  // at the endpoint
  std::string waiting_ ABSL_GUARDED_BY(mutex_);
  bool held_back_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;  // the client has left
};

}  // namespace syncopate::gateway
