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

// A source's part in sync attempts: pins the requested version from Prepare to Finish, tells receivers where it is, and
// starts the transports that push. Thread-safe; never blocks. The calls to a transport for one attempt come one after
// the other.
class WeightSource {
 public:
  struct Options {
    std::string layout = {};              // the layout of the staged weights, see Hello
    std::string destination_layout = {};  // the receivers' layout for which they are staged
    // Where processes of this host can map the base weights of all staged versions; "": nowhere. Quick and thread-safe;
    // null: nowhere.
    std::function<std::string()> base_rendezvous = nullptr;
  };

  // `store` and `transports` are borrowed. `options` must equal this source's Hello: an attempt with other layouts is
  // refused.
  WeightSource(WeightStore* store, std::vector<SourceTransport*> transports, Options options);

  // Returns the rendezvous. A rehearsal pins nothing. FAILED_PRECONDITION reason MODEL_MISMATCH, LAYOUT_MISMATCH,
  // DTYPE_MISMATCH, PLAN_MISMATCH or TRANSPORT_UNKNOWN; NOT_FOUND reason VERSION_NOT_STAGED; or the transport's error.
  absl::StatusOr<std::string> Prepare(const synchronizer::Prepare& command);
  // Call when all members have agreed. `done` is called exactly once, by any thread, perhaps before this returns: with
  // OK when this source has nothing left to send, with the reason why it cannot go on, or FAILED_PRECONDITION reason
  // NOT_PREPARED.
  void Transfer(const synchronizer::Transfer& command, std::function<void(absl::Status)> done);
  // Idempotent, also for attempts that were never prepared.
  void Finish(int64_t attempt);
  // Finishes all attempts: the stream to the synchronizer has broken, so no Finish will come.
  void FinishAll();

  // Call after a Prepare that succeeded. See Options.
  std::string base_rendezvous() const { return options_.base_rendezvous ? options_.base_rendezvous() : ""; }

  int pinned() const;

 private:
  struct Pin {
    std::unique_ptr<WeightReader> reader;  // null in a rehearsal
    SourceTransport* transport = nullptr;
    bool starting = false;  // Start is running: its caller closes the transport if `finished`
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
