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

// What health v1 answers on one server, kept current by a thread that asks a few times a second: health checks are
// answered, and watchers are told, from what was said last.
//
// Services: "liveness" as `live` says; "readiness", "" (the server as a whole) and each of `services` as `ready` says.
class HealthFeed {
 public:
  struct Source {
    std::function<bool()> live;
    std::function<bool()> ready;
    std::vector<std::string> services = {};  // full names
    absl::Duration every = absl::Milliseconds(100);
  };

  // `health` is borrowed. When this returns the first answers are there.
  HealthFeed(Source source, grpc::HealthCheckServiceInterface* health);
  ~HealthFeed();  // joins; `source` is not asked any more
  HealthFeed(const HealthFeed&) = delete;
  HealthFeed& operator=(const HealthFeed&) = delete;

 private:
  // Passes on what has changed: each setting of a status wakes the watchers.
  void Publish();

  const Source source_;
  grpc::HealthCheckServiceInterface* const health_;
  std::optional<bool> live_, ready_;  // as said last; of whoever calls Publish()
  Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: uses the members above
};

}  // namespace syncopate::rpc
