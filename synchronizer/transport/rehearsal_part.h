#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "synchronizer/messages.h"
#include "synchronizer/transport/transport.h"

namespace syncopate::synchronizer {

// A receiver's part in rehearsals, which run beside its attempt: one rehearsal at a time, the newest. Thread-safe;
// never blocks. The calls to a transport for one rehearsal come one after the other.
class RehearsalPart {
 public:
  // Returns the rendezvous, or the transport's error; an older rehearsal ends. `transport` is borrowed until the end.
  absl::StatusOr<std::string> Prepare(const synchronizer::Prepare& command, ReceiverTransport* transport);
  // Whether `attempt` is the present rehearsal.
  bool Concerns(int64_t attempt) const;
  // See ReceiverTransport::Connect. FAILED_PRECONDITION reason NOT_PREPARED if the rehearsal is not the present one.
  void Connect(const ReceiveRequest& request, std::function<void(absl::Status)> done);
  void Finish(int64_t attempt);
  void FinishAny();

 private:
  struct Present {
    int64_t attempt = 0;
    ReceiverTransport* transport = nullptr;
    bool connecting = false;  // Connect is running: its caller closes the transport if `finished`
    bool finished = false;
  };

  void FinishIf(const std::function<bool(int64_t attempt)>& wanted);

  mutable Mutex mutex_;
  std::optional<Present> present_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::synchronizer
