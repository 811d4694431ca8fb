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
#include "synchronizer/plan/payload.h"

namespace syncopate::synchronizer {

struct InstallResult {
  double pause_seconds = 0;  // how long no decode step could run because of it
};

// Numbers of one tensor that lie densely in a rank's arena.
struct TypedRange {
  ByteRange range;
  DType dtype = DType::kFloat32;
  std::string tensor;
};

// What a transfer has to bring, and is checked by.
struct ShadowContents {
  std::vector<ByteRange> buckets;   // of the shadow; disjoint, in the order of their digests
  std::vector<TypedRange> numbers;  // by begin, disjoint; what of the shadow holds weights
};

// Digests a transfer's buckets as they arrive, and looks for numbers that are not finite.
class ShadowCheck {
 public:
  virtual ~ShadowCheck() = default;
  // As synchronizer::Arrived: every byte of the buckets once, from any thread. Quick on a GPU; on a host it does its
  // share of the work here.
  virtual void Arrived(ByteRange destination, void* stream) = 0;
  // Call when all bytes have been announced. Blocks until they are there and digested, at most `deadline`. The digest
  // (DigestBytes) of each bucket in order. DATA_LOSS reason NON_FINITE naming the tensor, or INCOMPLETE if bytes were
  // not announced; DEADLINE_EXCEEDED reason DEADLINE.
  virtual absl::StatusOr<std::vector<uint64_t>> Finish(absl::Duration deadline) = 0;
};

// Where a receiver's weights live: what serves tokens, and a shadow of the same size that does not. The seam between
// the sync protocol and an inference engine. BeginInPlace, BeginCheck, Install, Relabel, CancelInPlace and
// Invalidate are called by one thread.
class WeightTarget {
 public:
  virtual ~WeightTarget() = default;
  // The bytes that do not serve, in host or device memory: as many as the plan's destination layout says, padding
  // zero. They belong to the receiver between two installs, and are other bytes after each.
  virtual char* shadow() = 0;
  // Makes the shadow's contents serve as `version`, between two decode steps. Blocks until done or `deadline` has
  // passed; after an error nothing has changed and nothing will.
  virtual absl::StatusOr<InstallResult> Install(const PolicyVersion& version, uint64_t digest,
                                                absl::Duration deadline) = 0;
  // An attempt is about to use the weight sets, which are there until EndAttempt. UNAVAILABLE reason HELD while installs
  // are held back, asleep for example: nothing has failed, and a later attempt may succeed. EndAttempt follows each
  // success once, from any thread, and does not block; they may overlap.
  virtual absl::Status BeginAttempt() { return absl::OkStatus(); }
  virtual void EndAttempt() {}
  // What can be done while others are waited for, by the same thread: what is in the shadow has been verified and will
  // probably be installed next; Install has been reported and has left something to do. Neither is necessary: whatever
  // needs it does it, too.
  virtual void ExpectInstall() {}
  virtual void RestoreShadow() {}
  // The bytes that serve are those of `version` too: only the label changes. Otherwise as Install.
  virtual absl::StatusOr<InstallResult> Relabel(const PolicyVersion& version, absl::Duration deadline) = 0;

  // Begins to check what arrives in shadow(). One check at a time; it ends before the next one begins and before the
  // target does. The default is for shadows in host memory (HostShadowCheck).
  virtual absl::StatusOr<std::unique_ptr<ShadowCheck>> BeginCheck(ShadowContents contents);

  // Whether CopyLive can be used. Without it a receiver is sent base weights until both weight sets hold them.
  virtual bool can_copy_live() const { return false; }
  // Makes these bytes of the shadow equal to those that serve. Blocks until they are.
  virtual absl::Status CopyLive(const std::vector<ByteRange>& /*ranges*/) {
    return Error(absl::StatusCode::kFailedPrecondition, "NO_COPY", "this target cannot copy what serves");
  }
  // What the latest sleep did to the weights. Only `sleep_level`, `free_cache_engine` and `slept` mean something here.
  // Thread-safe.
  virtual ReceiverWeights LastSleep() const { return {}; }

  // A target with one weight set: shadow() is what serves, so generation stands still while a transfer writes to it.
  virtual bool in_place() const { return false; }
  // Stops generation between two decode steps, for a transfer into the live weights. Install, Invalidate or
  // CancelInPlace follows; the pause that Install reports begins here. Blocks at most `deadline`; after an error
  // generation goes on.
  virtual absl::Status BeginInPlace(absl::Duration /*deadline*/) {
    return Error(absl::StatusCode::kFailedPrecondition, "NOT_IN_PLACE", "this target has a shadow of its own");
  }
  // What follows BeginInPlace if nothing was written: generation goes on with the weights that are there. Never fails.
  virtual void CancelInPlace() { Invalidate(); }
  // What follows BeginInPlace if the transfer fails later: the weights are garbage, nothing is generated until the next
  // Install. Never fails.
  virtual void Invalidate() {}
};

}  // namespace syncopate::synchronizer
