#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "base/status.h"
#include "ranks/collective.h"

namespace syncopate {

// One rank's end of a group of ranks that compute together: a trainer's, which hold one policy, or a replica's, which
// hold one model. All but rank(), world() and Abort() are calls that all ranks make, in the same order and of the same
// sizes, from one thread each; who owns the thread owns the communicator.
//
// A call on host memory blocks until its result is there. One on device memory is queued on the device's current
// stream; Finish() waits for it. Sums are the same bits on every rank; those of host memory are made in the order of
// ranks, so that a run with the same number of ranks repeats them.
//
// Every wait has the deadline that the implementation was given. Errors: UNAVAILABLE (reason RANK_LOST) if a rank is
// gone, or does not make the call in time; INTERNAL (reason RANK_MISMATCH), naming both calls, if it makes another one.
// After an error every further call gives it again.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t world() const = 0;

  // all [world() * bytes] := every rank's `mine` [bytes], in rank order. `mine` may be its own place in `all`, else
  // they are apart.
  absl::Status AllGather(const void* mine, void* all, int64_t bytes);
  // mine [count] := the sum over ranks of what each has at [rank() * count] of its `all` [world() * count]. They are
  // apart. `all` may be changed.
  absl::Status ReduceScatter(void* all, void* mine, int64_t count, Element element);
  // values [count] := their sum, or largest, over ranks.
  absl::Status AllReduce(void* values, int64_t count, Element element, Reduction reduction);
  absl::Status AllReduceSum(absl::Span<double> values);
  absl::Status AllReduceMax(absl::Span<double> values);
  // data [bytes] := that of rank `root`.
  absl::Status Broadcast(void* data, int64_t bytes, int32_t root);
  // Returns when all ranks have called it.
  absl::Status Barrier();

  // Waits until what this rank has queued on its device is done.
  virtual absl::Status Finish() { return absl::OkStatus(); }
  // Ends the call under way, and all further ones, with RANK_LOST and these words, here and soon on the other ranks.
  // Thread-safe, idempotent, does not block.
  virtual void Abort(const std::string& why) = 0;

  // What the calls above are made of. `in` and `out` as Collective::bytes_in and bytes_out say; they are one for
  // all-reduce and broadcast, and null for a barrier.
  virtual absl::Status Perform(const Collective& call, void* in, void* out) = 0;
};

// A group of one, for host memory; who has only device memory asks world() first.
class SingleRank final : public Communicator {
 public:
  int32_t rank() const override { return 0; }
  int32_t world() const override { return 1; }
  void Abort(const std::string&) override {}
  absl::Status Perform(const Collective& call, void* in, void* out) override;
};

}  // namespace syncopate
