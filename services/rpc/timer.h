#pragma once

#include <grpcpp/alarm.h>

#include <functional>
#include <memory>

#include "absl/time/time.h"

namespace syncopate::rpc {

// A one-shot timer on gRPC's own threads, for stall checks, heartbeats and reconnect backoff. Not thread-safe: its
// owner's lock guards it, and may be held during Set and Cancel, which never call `fire` inline.
class Timer {
 public:
  // Calls `fire` once from a gRPC thread after `delay`; replaces an earlier timer. `fire` must not block. Set, Cancel
  // and the destructor cannot take back a call that has begun, so `fire` captures a shared or weak pointer to what it
  // uses and checks there whether it is still wanted.
  void Set(absl::Duration delay, std::function<void()> fire);
  void Cancel() { alarm_.reset(); }

 private:
  std::unique_ptr<grpc::Alarm> alarm_;
};

}  // namespace syncopate::rpc
