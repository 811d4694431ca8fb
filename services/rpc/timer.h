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
  // Calls `fire` once from a gRPC thread after `delay`; replaces what was set before. `fire` must not block. A call
  // that has begun cannot be taken back by Set, Cancel or the destructor, so `fire` captures a shared or weak pointer
  // to what it touches and checks there whether it still matters.
  void Set(absl::Duration delay, std::function<void()> fire);
  void Cancel() { alarm_.reset(); }

 private:
  std::unique_ptr<grpc::Alarm> alarm_;
};

}  // namespace syncopate::rpc
