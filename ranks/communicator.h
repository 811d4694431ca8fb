#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "base/status.h"
#include "ranks/collective.h"

namespace syncopate {

// One rank's end of a group of ranks that compute together: those of a trainer, which share one policy, or those of a
// replica, which share one model. All ranks make the same calls (all but rank(), world() and Abort()), in the same
// order and of the same sizes, from one thread each; the owner of that thread owns the communicator.
//
// A call on host memory blocks until its result is there. A call on device memory is queued on the device's current
// stream; Finish() waits for it. Sums are bit-identical on every rank. Sums in host memory are made in the order of
// ranks, so that a run with the same number of ranks repeats them.
//
// Every wait has the deadline that the implementation was given. Errors: UNAVAILABLE (reason RANK_LOST) if a rank is
// gone, or does not make the call in time; INTERNAL (reason RANK_MISMATCH), naming both calls, if a rank makes another
// call. After an error every further call returns the same error.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t world() const = 0;

  // all [world() * bytes] := every rank's `mine` [bytes], in rank order. `mine` may be this rank's part of `all`, else
  // the two must not overlap.
  absl::Status AllGather(const void* mine, void* all, int64_t bytes);
  // mine [count] := the sum over ranks of elements [rank() * count, (rank() + 1) * count) of their `all`
  // [world() * count]. `all` and `mine` must not overlap. The call may change `all`.
  absl::Status ReduceScatter(void* all, void* mine, int64_t count, Element element);
  // values [count] := their sum, or maximum, over ranks.
  absl::Status AllReduce(void* values, int64_t count, Element element, Reduction reduction);
  absl::Status AllReduceSum(absl::Span<double> values);
  absl::Status AllReduceMax(absl::Span<double> values);
  // data [bytes] := the data of rank `root`.
  absl::Status Broadcast(void* data, int64_t bytes, int32_t root);
  // Blocks until all ranks have called it.
  absl::Status Barrier();

  // Blocks until the work that this rank has queued on its device is done.
  virtual absl::Status Finish() { return absl::OkStatus(); }
  // Ends the current call and all later ones with RANK_LOST and the message `why`, here and soon on the other ranks.
  // Thread-safe, idempotent, does not block.
  virtual void Abort(const std::string& why) = 0;

  // Performs any of the calls above. `in` and `out` have the sizes that Collective::bytes_in and bytes_out give; they
  // are the same memory for all-reduce and broadcast, and null for a barrier.
  virtual absl::Status Perform(const Collective& call, void* in, void* out) = 0;
};

// A group of one rank, for host memory. A caller with device memory must check world() and make no call.
class SingleRank final : public Communicator {
 public:
  int32_t rank() const override { return 0; }
  int32_t world() const override { return 1; }
  void Abort(const std::string&) override {}
  absl::Status Perform(const Collective& call, void* in, void* out) override;
};

}  // namespace syncopate
