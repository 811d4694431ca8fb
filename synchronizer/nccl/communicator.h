#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "synchronizer/nccl/group_plan.h"
#include "synchronizer/nccl/rendezvous.h"

// The functions of NCCL and of a GPU that the transport "nccl" needs. nccl_device.h has the real ones; tests use some
// that move host memory. Functions block only where this file says so, and never without bound.
namespace syncopate::synchronizer::nccl {

// A set of processes that exchange messages. Used only by the thread that made it.
class Communicator {
 public:
  // Unless Finalize succeeded, aborts what is under way and frees all resources; waits for a few seconds at most.
  virtual ~Communicator() = default;

  // Begins to put one round's messages on the stream of its GroupDevice. `base` is the send arena or the destination.
  // Poll must have returned true since the last Begin, or since the communicator was joined.
  virtual absl::Status Begin(const std::vector<Transmission>& messages, char* base) = 0;
  // True when the last Begin is complete (the messages are on the stream), or after Join when the members have met.
  // UNAVAILABLE reason PEER_LOST, INTERNAL reason NCCL_ERROR.
  virtual absl::StatusOr<bool> Poll() = 0;
  // Ends the communicator in order, even if other members keep theirs; blocks for at most `deadline`, then for an
  // abort. No message may be under way.
  virtual absl::Status Finalize(absl::Duration deadline) = 0;
  // Stops everything, on the device too, and frees it. Blocks for a few seconds at most: INTERNAL reason ABORT_STUCK if
  // that is not enough; then this process should end.
  virtual absl::Status Abort() = 0;
};

// This member's GPU, with one stream for its messages. Used by one thread.
class GroupDevice {
 public:
  virtual ~GroupDevice() = default;

  // Begins to form a communicator with all members that join with the same id.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Join(const UniqueId& id, const Seat& seat) = 0;

  // Memory of kScratchBytes for messages whose contents do not matter.
  static constexpr int64_t kScratchBytes = 256;
  virtual char* scratch() = 0;

  virtual void* stream() = 0;  // the stream to pass to Arrived
  // Marks the present end of the stream; Reached() returns true when all earlier work is done. One mark at a time.
  virtual absl::Status Mark() = 0;
  virtual absl::StatusOr<bool> Reached() = 0;
  // Blocks until no work is under way on the stream. INTERNAL reason COPY_STUCK after `deadline`.
  virtual absl::Status Drain(absl::Duration deadline) = 0;
};

}  // namespace syncopate::synchronizer::nccl
