#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "synchronizer/messages.h"
#include "synchronizer/transport/transport.h"
#include "synchronizer/transport/weight_store.h"

namespace syncopate::synchronizer {

// A source's part in sync attempts: pins the asked version from Prepare to Finish, says where receivers find it, and
// starts the transports that push. Thread-safe; never blocks. The calls that a transport gets for one attempt come one
// after the other.
class WeightSource {
 public:
  struct Options {
    std::string layout = {};              // of the staged weights, as in Hello
    std::string destination_layout = {};  // that they are staged for
  };

  // `store` and `transports` are borrowed. `options` say what this source's Hello says: an attempt of other layouts is
  // refused.
  WeightSource(WeightStore* store, std::vector<SourceTransport*> transports, Options options);

  // The rendezvous. A rehearsal pins nothing. FAILED_PRECONDITION reason MODEL_MISMATCH, LAYOUT_MISMATCH,
  // DTYPE_MISMATCH, PLAN_MISMATCH or TRANSPORT_UNKNOWN; NOT_FOUND reason VERSION_NOT_STAGED; or what the transport
  // says.
  absl::StatusOr<std::string> Prepare(const synchronizer::Prepare& command);
  // All members have agreed. `done` is called exactly once, by any thread, perhaps before this returns: OK when this
  // source has nothing left to send, why it cannot go on, or FAILED_PRECONDITION reason NOT_PREPARED.
  void Transfer(const synchronizer::Transfer& command, std::function<void(absl::Status)> done);
  // Idempotent, also for attempts that were never prepared.
  void Finish(int64_t attempt);
  // All attempts: the stream to the synchronizer has broken, so nobody will finish them.
  void FinishAll();

  int pinned() const;

 private:
  struct Pin {
    std::unique_ptr<WeightReader> reader;  // null in a rehearsal
    SourceTransport* transport = nullptr;
    bool starting = false;  // Start is being called: whoever calls it closes if `finished`
    bool finished = false;
  };

  absl::StatusOr<SourceTransport*> CheckPrepare(const synchronizer::Prepare& command) const;

  WeightStore* const store_;
  const std::vector<SourceTransport*> transports_;
  const Options options_;
  mutable Mutex mutex_;
  std::map<int64_t, Pin> pins_ ABSL_GUARDED_BY(mutex_);  // by attempt
};

}  // namespace syncopate::synchronizer
