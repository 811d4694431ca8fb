#pragma once

#include <memory>
#include <string>

#include "base/mutex.h"
#include "ranks/communicator.h"

namespace syncopate {

// A communicator that is needed before the ranks have met: rank and world are known at once, and calls are forwarded to
// the communicator that Connect() sets. Before Connect() every call returns FAILED_PRECONDITION (reason RANKS_APART).
class LateRanks final : public Communicator {
 public:
  LateRanks(int32_t rank, int32_t world) : rank_(rank), world_(world) {}

  int32_t rank() const override { return rank_; }
  int32_t world() const override { return world_; }
  // `ranks` must have the same rank and world. Call it once, on the thread that makes the calls; Abort() may run at the
  // same time.
  void Connect(std::unique_ptr<Communicator> ranks);

  absl::Status Finish() override;
  void Abort(const std::string& why) override;
  absl::Status Perform(const Collective& call, void* in, void* out) override;

 private:
  absl::StatusOr<Communicator*> Connected();

  const int32_t rank_, world_;
  Mutex mutex_;
  std::unique_ptr<Communicator> ranks_ ABSL_GUARDED_BY(mutex_);  // set once, then constant
  std::string aborted_ ABSL_GUARDED_BY(mutex_);                  // reason of an Abort() before Connect()
};

}  // namespace syncopate
