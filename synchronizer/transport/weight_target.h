#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/manifest.h"
#include "base/policy_version.h"
#include "base/status.h"
#include "synchronizer/lent_memory.h"
#include "synchronizer/plan/payload.h"

namespace syncopate::synchronizer {

struct InstallResult {
  double pause_seconds = 0;  // how long the install kept decode steps from running
};

// Numbers of one tensor that are contiguous in a rank's arena.
struct TypedRange {
  ByteRange range;
  DType dtype = DType::kFloat32;
  std::string tensor;
};

// The bytes that a transfer must bring, and the numbers among them to check.
struct ShadowContents {
  std::vector<ByteRange> buckets;   // ranges of the shadow; disjoint, in the order of their digests
  std::vector<TypedRange> numbers;  // ranges of the shadow that contain weights; by begin, disjoint
};

// Digests a transfer's buckets as they arrive, and checks that their numbers are finite.
class ShadowCheck {
 public:
  virtual ~ShadowCheck() = default;
  // See synchronizer::Arrived: announce every byte of the buckets once, from any thread. Quick on a GPU; on a host it
  // digests and checks here.
  virtual void Arrived(ByteRange destination, void* stream) = 0;
  // Call when all bytes have been announced. Blocks until they have arrived and are digested, at most `deadline`.
  // Returns the digest (DigestBytes) of each bucket in order. DATA_LOSS reason NON_FINITE naming the tensor, or
  // INCOMPLETE if bytes were not announced; DEADLINE_EXCEEDED reason DEADLINE.
  virtual absl::StatusOr<std::vector<uint64_t>> Finish(absl::Duration deadline) = 0;
};

// The weight sets of a receiver: the live one, which serves tokens, and a shadow of the same size, which does not. The
// seam between the sync protocol and an inference engine. BeginInPlace, BeginCheck, Install, Relabel, CancelInPlace and
// Invalidate are called by one thread.
class WeightTarget {
 public:
  virtual ~WeightTarget() = default;
  // The shadow's bytes, in host or device memory: as many as the plan's destination layout needs, padding zero. They
  // belong to the receiver between two installs. Each install changes which memory is the shadow.
  virtual char* shadow() = 0;
  // Makes the shadow's contents serve as `version`, between two decode steps. Blocks until done or until `deadline` has
  // passed; after an error nothing has changed, and nothing will change later.
  virtual absl::StatusOr<InstallResult> Install(const PolicyVersion& version, uint64_t digest,
                                                absl::Duration deadline) = 0;
  // Call before an attempt uses the weight sets, which then stay until EndAttempt. UNAVAILABLE reason HELD while
  // installs are not possible, for example during sleep: nothing has failed, and a later attempt may succeed. Call
  // EndAttempt once after each success, from any thread; it does not block. Attempts may overlap.
  virtual absl::Status BeginAttempt() { return absl::OkStatus(); }
  virtual void EndAttempt() {}
  // Call in an attempt before its first use of shadow(). A target whose shadow has no memory between attempts gets it
  // here, blocks for that at most `deadline`, and returns true: what the shadow had is lost. Its memory leaves after an
  // Install, or with EndAttempt, by which nobody may write there any more. UNAVAILABLE reason NO_SHADOW.
  virtual absl::StatusOr<bool> TakeShadow(absl::Duration /*deadline*/) { return false; }
  // Optional work that Install left to do, called by the receiver's thread after it has reported the install. If it is
  // not called, the operation that needs the work does it.
  virtual void RestoreShadow() {}
  // Changes only the version of the live bytes, which are those of `version` too. Blocks and fails as Install does.
  virtual absl::StatusOr<InstallResult> Relabel(const PolicyVersion& version, absl::Duration deadline) = 0;

  // Begins to check the bytes that arrive in shadow(). One check at a time; it must end before the next one begins and
  // before the target is destroyed. The default is for shadows in host memory (HostShadowCheck).
  virtual absl::StatusOr<std::unique_ptr<ShadowCheck>> BeginCheck(ShadowContents contents);

  // Whether CopyLive can be used. Without it a receiver is sent base weights until both weight sets have them.
  virtual bool can_copy_live() const { return false; }
  // Copies these ranges from the live weights to the shadow. Blocks until done.
  virtual absl::Status CopyLive(const std::vector<ByteRange>& /*ranges*/) {
    return Error(absl::StatusCode::kFailedPrecondition, "NO_COPY", "this target cannot copy what serves");
  }
  // Returns what the latest sleep did to the weights. Only `sleep_level`, `free_cache_engine` and `slept` are set.
  // Thread-safe.
  virtual ReceiverWeights LastSleep() const { return {}; }

  // True for a target with one weight set: shadow() is the live set, so generation stops while a transfer writes to it.
  virtual bool in_place() const { return false; }
  // True if live weights and shadow differ in their adapters alone (TensorSpec::adapter), and share the memory of the
  // base. A transfer of adapters then touches nothing that serves. A transfer of the base is one in place: generation
  // stops with BeginInPlace, and the adapters behind the base become live with Install.
  virtual bool shares_base() const { return false; }
  // True for a target that shares its base and can take memory that another process lends for it.
  virtual bool maps_base() const { return false; }
  // Makes `memory` the base, read-only, in place of the target's own. Call between BeginInPlace and Install, with
  // OwnBase() in its place when base weights arrive by the transport: shadow() is not writable there before.
  // FAILED_PRECONDITION reason BASE_UNMAPPABLE if it is no memory that this target can map.
  virtual absl::Status MapBase(LentMemory /*memory*/) {
    return Error(absl::StatusCode::kFailedPrecondition, "BASE_UNMAPPABLE", "this target maps no base weights");
  }
  // Makes sure that the base has memory of the target's own. RESOURCE_EXHAUSTED reason OUT_OF_MEMORY.
  virtual absl::Status OwnBase() { return absl::OkStatus(); }
  // Stops generation between two decode steps, for a transfer of `version` into the live weights. Call Install,
  // Invalidate or CancelInPlace next; the pause that Install reports begins here. Blocks at most `deadline`; after an
  // error generation continues, and DEADLINE_EXCEEDED may be tried again.
  virtual absl::Status BeginInPlace(const PolicyVersion& /*version*/, absl::Duration /*deadline*/) {
    return Error(absl::StatusCode::kFailedPrecondition, "NOT_IN_PLACE", "this target has a shadow of its own");
  }
  // Call after BeginInPlace if nothing was written: generation continues with the unchanged weights. Never fails.
  virtual void CancelInPlace() { Invalidate(); }
  // Call after BeginInPlace if the transfer fails later: the weights are garbage, and nothing is generated until the
  // next Install. Never fails.
  virtual void Invalidate() {}
  // False if the live weights were lost without a call of Invalidate: a transfer in place failed on another rank of the
  // replica. True again after the next Install. Thread-safe.
  virtual bool HasWeights() const { return true; }
};

}  // namespace syncopate::synchronizer
