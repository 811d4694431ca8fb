#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "base/policy_version.h"
#include "base/status.h"
#include "synchronizer/transport/weight_target.h"

namespace syncopate::rollouter {

// Lets rank 0 of a replica change a version together with the other ranks (joint_install.h, joint_pause.h).
// Thread-safe.
class InstallRanks {
 public:
  virtual ~InstallRanks() = default;
  // The number of ranks of the replica, rank 0 included.
  virtual int32_t world() const = 0;
  // Waits until every other rank has its slice of the version; after OK no rank may withdraw until EndClaim().
  // DEADLINE_EXCEEDED (reason INSTALL_DEADLINE): all ranks are released; UNAVAILABLE (reason RANK_LOST).
  virtual absl::Status Claim(const PolicyVersion& version, absl::Duration deadline) = 0;
  enum class End { kExchanged, kRelabelled, kGivenUp };
  // Ends the claim and tells the other ranks the outcome.
  virtual void EndClaim(const PolicyVersion& version, End end) = 0;

  // For replicas with one weight set. Waits until every other rank waits for generation to stop for the version.
  // DEADLINE_EXCEEDED (reason INSTALL_DEADLINE): ranks that wait go on waiting; UNAVAILABLE (reason RANK_LOST).
  virtual absl::Status AwaitStopAwaited(const PolicyVersion& version, absl::Duration deadline) = 0;
  // Call when generation has stopped for the version: forgets which ranks waited for it.
  virtual void EndStopAwaited(const PolicyVersion& version) = 0;
  // Tells the other ranks that the replica has lost its weights. Does not block.
  virtual void SendWeightsLost(const PolicyVersion& version) = 0;
  // `listener` is called on any thread when another rank receives the version in place no longer, in the order of what
  // the rank says. After a call with nullptr it is neither called nor running. It must not block.
  using AbandonListener = std::function<void(int32_t rank, const PolicyVersion& version, bool overwritten)>;
  virtual void SetAbandonListener(AbandonListener listener) = 0;
};

// Creates rank 0's target of weight syncs: forwards to `engine`, but installs a version only when all ranks can, and
// stops generation for a transfer in place when all ranks can receive it. Borrows both. `on_lost` is called when a
// transfer in place has failed on another rank so that the replica has no weights any more; by any thread, must not
// block; may be null.
std::unique_ptr<synchronizer::WeightTarget> MakeLeadingTarget(synchronizer::WeightTarget* engine, InstallRanks* ranks,
                                                              std::function<void()> on_lost);

}  // namespace syncopate::rollouter
