#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "google/protobuf/message.h"

namespace syncopate::rpc {

// Limit on a client's request_id: INVALID_ARGUMENT (reason REQUEST_ID_TOO_LONG) for more than kMaxRequestIdBytes.
inline constexpr size_t kMaxRequestIdBytes = 128;
absl::Status CheckRequestId(const std::string& request_id);

// Makes the mutating calls of one service idempotent by their request_id. The last `capacity` ids are remembered, or
// fewer if they and their answers take more than `max_bytes`; a call with a remembered id gets the same answer and the
// work is not done again. A duplicate that comes while the first call is still at work is answered together with it; no
// thread waits. Only success is remembered: a refused request has changed nothing, so the same id may try again.
// Thread-safe.
//
//   request_ids_.Run("Pause", *request, request->request_id(), response,
//                    [&](google::protobuf::Message* out, RequestIds::Done done) { done(engine_->Pause()); },
//                    [call](const absl::Status& status) { call->Finish(status); });
class RequestIds {
 public:
  using Done = std::function<void(const absl::Status&)>;
  // Does the work, fills `response` in, and calls `done` once, now or later, from any thread.
  using Work = std::function<void(google::protobuf::Message* response, Done done)>;

  explicit RequestIds(size_t capacity = 1024, int64_t max_bytes = 1 << 20)
      : capacity_(capacity), max_bytes_(max_bytes) {}

  // Calls `reply(status)` exactly once, after `response` (the caller's, alive until then) has the answer. An empty id
  // is never remembered. INVALID_ARGUMENT if the id named another request (reason REQUEST_ID_REUSED), or is too long.
  void Run(const std::string& method, const google::protobuf::Message& request, const std::string& request_id,
           google::protobuf::Message* response, const Work& work, Done reply);

 private:
  struct Waiter {
    google::protobuf::Message* response;
    Done reply;
  };
  struct Entry {
    uint64_t fingerprint = 0;                           // of the method and the request
    std::shared_ptr<google::protobuf::Message> answer;  // filled in by the work
    bool ready = false;
    int64_t bytes = 0;  // size of the entry, once it is ready
    std::vector<Waiter> waiting;
  };

  void Complete(const std::string& request_id, const std::shared_ptr<google::protobuf::Message>& answer,
                const absl::Status& status);
  void ForgetOldestLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t capacity_;
  const int64_t max_bytes_;
  Mutex mutex_;
  std::unordered_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> ready_order_ ABSL_GUARDED_BY(mutex_);  // oldest first; only answered ids are forgotten
  int64_t ready_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncopate::rpc
