#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "synchronizer/nccl/group_plan.h"
#include "synchronizer/nccl/rendezvous.h"

// What the transport "nccl" needs of NCCL and of a GPU. The real ones are nccl_device.h's; tests have some that move host
// memory. Nothing here blocks except where it says so, and then never without bound.
namespace syncopate::synchronizer::nccl {

// A set of processes that exchange messages. Used by one thread, the one that made it.
class Communicator {
 public:
  // Aborts what is under way and frees what is held here, unless Finalize did; waits for a few seconds at most.
  virtual ~Communicator() = default;

  // Begins to put one round's messages on the stream of its GroupDevice. `base` is the send arena or the destination.
  // Poll must have said true since the last begin; forming the communicator counts as one.
  virtual absl::Status Begin(const std::vector<Transmission>& messages, char* base) = 0;
  // True when the last begin is over: the members have met, or the messages are on the stream. UNAVAILABLE reason
  // PEER_LOST, INTERNAL reason NCCL_ERROR.
  virtual absl::StatusOr<bool> Poll() = 0;
  // Ends the communicator in order, whether or not other members keep theirs; blocks at most for `deadline` and then
  // for an abort. No message may be under way.
  virtual absl::Status Finalize(absl::Duration deadline) = 0;
  // Stops everything, on the device too, and frees it. Blocks at most for a few seconds: INTERNAL reason ABORT_STUCK if
  // that is not enough, in which case this process should end.
  virtual absl::Status Abort() = 0;
};

// This member's GPU, with one stream for its messages. Used by one thread.
class GroupDevice {
 public:
  virtual ~GroupDevice() = default;

  // Begins to form a communicator with everybody who joins by the same id.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Join(const UniqueId& id, const Seat& seat) = 0;

  // A place for messages that nobody reads, of kScratchBytes.
  static constexpr int64_t kScratchBytes = 256;
  virtual char* scratch() = 0;

  virtual void* stream() = 0;  // what Arrived is given
  // Marks the present end of the stream; true from Reached() when all that came before is done. One mark at a time.
  virtual absl::Status Mark() = 0;
  virtual absl::StatusOr<bool> Reached() = 0;
  // Blocks until nothing is under way on the stream. INTERNAL reason COPY_STUCK after `deadline`.
  virtual absl::Status Drain(absl::Duration deadline) = 0;
};

}  // namespace syncopate::synchronizer::nccl
