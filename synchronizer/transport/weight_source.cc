#include "synchronizer/transport/weight_source.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace syncopate::synchronizer {

WeightSource::WeightSource(WeightStore* store, std::vector<SourceTransport*> transports)
    : store_(store), transports_(std::move(transports)) {}

absl::StatusOr<std::string> WeightSource::Prepare(const synchronizer::Prepare& command) {
  if (command.manifest_fingerprint != store_->fingerprint()) {
    return Error(absl::StatusCode::kFailedPrecondition, "MODEL_MISMATCH", "the attempt is of another model");
  }
  SourceTransport* transport = nullptr;
  for (SourceTransport* candidate : transports_) {
    if (candidate->name() == command.transport) transport = candidate;
  }
  if (transport == nullptr) {
    return Error(absl::StatusCode::kFailedPrecondition, "TRANSPORT_UNKNOWN",
                 absl::StrFormat("this source cannot send by %s", command.transport));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<WeightReader> reader, store_->Open(command.version));
  SYNCOPATE_ASSIGN_OR_RETURN(std::string rendezvous, transport->Open(command));
  MutexLock lock(&mutex_);
  pins_[command.attempt] = {std::move(reader), transport};
  return rendezvous;
}

void WeightSource::Finish(int64_t attempt) {
  Pin pin;  // dropped without the lock
  {
    MutexLock lock(&mutex_);
    auto found = pins_.find(attempt);
    if (found == pins_.end()) return;
    pin = std::move(found->second);
    pins_.erase(found);
  }
  pin.transport->Close(attempt);
}

void WeightSource::FinishAll() {
  std::map<int64_t, Pin> pins;
  {
    MutexLock lock(&mutex_);
    pins.swap(pins_);
  }
  for (auto& [attempt, pin] : pins) pin.transport->Close(attempt);
}

int WeightSource::pinned() const {
  MutexLock lock(&mutex_);
  return static_cast<int>(pins_.size());
}

}  // namespace syncopate::synchronizer
