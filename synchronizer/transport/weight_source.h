#pragma once

#include <cstdint>
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

// A source's part in sync attempts: pins the asked version from Prepare to Finish and says where receivers find it.
// Thread-safe; never blocks.
class WeightSource {
 public:
  // `store` and `transports` are borrowed.
  WeightSource(WeightStore* store, std::vector<SourceTransport*> transports);

  // The rendezvous. FAILED_PRECONDITION reason MODEL_MISMATCH or TRANSPORT_UNKNOWN; NOT_FOUND reason
  // VERSION_NOT_STAGED.
  absl::StatusOr<std::string> Prepare(const synchronizer::Prepare& command);
  // Idempotent, also for attempts that were never prepared.
  void Finish(int64_t attempt);
  // All attempts: the stream to the synchronizer has broken, so nobody will finish them.
  void FinishAll();

  int pinned() const;

 private:
  struct Pin {
    std::unique_ptr<WeightReader> reader;
    SourceTransport* transport = nullptr;
  };

  WeightStore* const store_;
  const std::vector<SourceTransport*> transports_;
  mutable Mutex mutex_;
  std::map<int64_t, Pin> pins_ ABSL_GUARDED_BY(mutex_);  // by attempt
};

}  // namespace syncopate::synchronizer
