#pragma once

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/mutex.h"

namespace grpc {
class HealthCheckServiceInterface;
}

namespace syncopate::rpc {

// The answers of health v1 on one server, kept current by a thread that calls `live` and `ready` ten times a second
// (`every`): health checks and watchers get the newest values.
//
// Services: "liveness" follows `live`; "readiness", "" (the server as a whole) and each of `services` follow `ready`.
class HealthFeed {
 public:
  struct Source {
    std::function<bool()> live;
    std::function<bool()> ready;
    std::vector<std::string> services = {};  // full names
    absl::Duration every = absl::Milliseconds(100);
  };

  // `health` is borrowed. When this returns, the first answers are set.
  HealthFeed(Source source, grpc::HealthCheckServiceInterface* health);
  ~HealthFeed();  // joins the thread; `source` is not called afterwards
  HealthFeed(const HealthFeed&) = delete;
  HealthFeed& operator=(const HealthFeed&) = delete;

 private:
  // Sets only a status that has changed: each setting of a status wakes the watchers.
  void Publish();

  const Source source_;
  grpc::HealthCheckServiceInterface* const health_;
  std::optional<bool> live_, ready_;  // as published last; used only by the thread in Publish()
  Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: uses the members above
};

}  // namespace syncopate::rpc
