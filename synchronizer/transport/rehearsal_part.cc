#include "synchronizer/transport/rehearsal_part.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::synchronizer {

absl::StatusOr<std::string> RehearsalPart::Prepare(const synchronizer::Prepare& command, ReceiverTransport* transport) {
  FinishAny();
  SYNCOPATE_ASSIGN_OR_RETURN(std::string rendezvous, transport->Open(command));
  MutexLock lock(&mutex_);
  present_ = {command.attempt, transport};
  return rendezvous;
}

bool RehearsalPart::Concerns(int64_t attempt) const {
  MutexLock lock(&mutex_);
  return present_.has_value() && present_->attempt == attempt && !present_->finished;
}

void RehearsalPart::Connect(const ReceiveRequest& request, std::function<void(absl::Status)> done) {
  ReceiverTransport* transport = nullptr;
  {
    MutexLock lock(&mutex_);
    const bool there = present_.has_value() && present_->attempt == request.attempt && !present_->connecting;
    if (there) transport = present_->transport;
    if (there) present_->connecting = true;
  }
  if (transport == nullptr) {
    return done(Error(absl::StatusCode::kFailedPrecondition, reason::kNotPrepared,
                      absl::StrFormat("rehearsal %d is not under way at this receiver", request.attempt)));
  }
  // Runs without the lock, because `done` may be called inside. A Finish meanwhile only marks; this thread then closes.
  transport->Connect(request, std::move(done));
  bool finished = false;
  {
    MutexLock lock(&mutex_);
    present_->connecting = false;
    finished = present_->finished;
  }
  if (finished) FinishAny();
}

void RehearsalPart::Finish(int64_t attempt) {
  FinishIf([attempt](int64_t present) { return present == attempt; });
}

void RehearsalPart::FinishAny() {
  FinishIf([](int64_t) { return true; });
}

void RehearsalPart::FinishIf(const std::function<bool(int64_t attempt)>& wanted) {
  Present ended;
  {
    MutexLock lock(&mutex_);
    if (!present_.has_value() || !wanted(present_->attempt)) return;
    present_->finished = true;
    if (present_->connecting) return;
    ended = *present_;
    present_.reset();
  }
  // Called without the lock: Close may end a Connect, whose `done` may call this object.
  ended.transport->Close(ended.attempt);
}

}  // namespace syncopate::synchronizer
