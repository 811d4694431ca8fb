#include "synchronizer/transport/weight_source.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "base/reasons.h"
#include "base/status.h"
#include "synchronizer/transport/plan_cache.h"

namespace syncopate::synchronizer {

WeightSource::WeightSource(WeightStore* store, std::vector<SourceTransport*> transports, Options options)
    : store_(store), transports_(std::move(transports)), options_(std::move(options)) {}

absl::StatusOr<std::string> WeightSource::Prepare(const synchronizer::Prepare& command) {
  SYNCOPATE_ASSIGN_OR_RETURN(SourceTransport * transport, CheckPrepare(command));
  std::unique_ptr<WeightReader> reader;
  if (!command.rehearsal) {
    SYNCOPATE_ASSIGN_OR_RETURN(reader, store_->Open(command.version));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(std::string rendezvous, transport->Open(command));
  MutexLock lock(&mutex_);
  // The pin protects the slot from staging from here on. An attempt that fails before this pins nothing.
  pins_[command.attempt] = {std::move(reader), transport};
  return rendezvous;
}

absl::StatusOr<SourceTransport*> WeightSource::CheckPrepare(const synchronizer::Prepare& command) const {
  if (command.manifest_fingerprint != store_->fingerprint()) {
    return Error(absl::StatusCode::kFailedPrecondition, reason::kModelMismatch, "the attempt is of another model");
  }
  SYNCOPATE_RETURN_IF_ERROR(CheckSameLayout(SourceLayoutName(options_.layout, command.sources),
                                            SourceLayoutName(command.source_layout, command.sources), "this source"));
  if (!options_.destination_layout.empty()) {
    SYNCOPATE_RETURN_IF_ERROR(
        CheckSameLayout(options_.destination_layout, command.destination_layout, "the receivers it stages for"));
  }
  // Bytes that are staged by one plan and fetched by another would pass their digests and be in the wrong places.
  if (store_->plan_hash() != 0 && store_->plan_hash() != command.plan_hash) {
    return Error(absl::StatusCode::kFailedPrecondition, reason::kPlanMismatch,
                 absl::StrFormat("weights are staged for plan %016x, the attempt has plan %016x; run the same build on "
                                 "all members",
                                 store_->plan_hash(), command.plan_hash));
  }
  auto transport = absl::c_find_if(
      transports_, [&command](const auto* candidate) { return candidate->name() == command.transport; });
  if (transport != transports_.end()) return *transport;
  return Error(absl::StatusCode::kFailedPrecondition, reason::kTransportUnknown,
               absl::StrFormat("this source cannot send by %s", command.transport));
}

void WeightSource::Transfer(const synchronizer::Transfer& command, std::function<void(absl::Status)> done) {
  SourceTransport* transport = nullptr;
  {
    MutexLock lock(&mutex_);
    auto found = pins_.find(command.attempt);
    if (found != pins_.end()) {
      transport = found->second.transport;
      // Finish may come while the transport starts without the lock: the thread that sees the other's mark closes.
      found->second.starting = true;
    }
  }
  if (transport == nullptr) {
    return done(Error(absl::StatusCode::kFailedPrecondition, reason::kNotPrepared,
                      absl::StrFormat("attempt %d is not under way at this source", command.attempt)));
  }
  // Runs without the lock, because `done` may be called inside and call this object.
  const absl::Status started = transport->Start(command, done);
  if (!started.ok()) done(started);
  bool finished = false;
  {
    MutexLock lock(&mutex_);
    Pin& pin = pins_.at(command.attempt);
    pin.starting = false;
    finished = pin.finished;
  }
  if (finished) Finish(command.attempt);
}

void WeightSource::Finish(int64_t attempt) {
  Pin pin;  // destroyed without the lock
  {
    MutexLock lock(&mutex_);
    auto found = pins_.find(attempt);
    if (found == pins_.end()) return;
    found->second.finished = true;
    if (found->second.starting) return;
    pin = std::move(found->second);
    pins_.erase(found);
  }
  pin.transport->Close(attempt);
}

void WeightSource::FinishAll() {
  std::vector<int64_t> attempts;
  {
    MutexLock lock(&mutex_);
    for (const auto& [attempt, pin] : pins_) attempts.push_back(attempt);
  }
  for (int64_t attempt : attempts) Finish(attempt);
}

int WeightSource::pinned() const {
  MutexLock lock(&mutex_);
  return static_cast<int>(pins_.size());
}

}  // namespace syncopate::synchronizer
