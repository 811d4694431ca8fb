#pragma once

#include <cstdint>
#include <vector>

#include "base/manifest.h"
#include "synchronizer/plan/sync_plan.h"

// Decides which member sends which bytes to which member in one transfer over NCCL, and in which order. Pure functions:
// every member computes its own part from the same facts, and the parts match.
namespace syncopate::synchronizer::nccl {

// The group of one attempt: T source ranks, then M replicas of P ranks each.
struct GroupShape {
  int32_t sources = 1;   // T
  int32_t replicas = 1;  // M
  int32_t world = 1;     // P

  int32_t receivers() const { return replicas * world; }
  // If there are more replicas than sources, each byte leaves its source once, by broadcast to all replicas of the
  // slice; otherwise every pair of a source and a receiver exchanges its own messages.
  bool broadcasts() const { return replicas > sources; }
  // The number of communicators: one for all members; with broadcasts one for each pair of source and slice, whose
  // members are that source and the slice's replicas.
  int32_t communicators() const { return broadcasts() ? sources * world : 1; }
  friend bool operator==(const GroupShape&, const GroupShape&) = default;
};

// A member's place in one communicator.
struct Seat {
  int32_t communicator = 0;  // below GroupShape::communicators()
  int32_t size = 0;
  int32_t rank = 0;
  friend bool operator==(const Seat&, const Seat&) = default;
};

// One message, from one end's view.
struct Transmission {
  enum class Kind : uint8_t { kSend, kReceive, kBroadcast };  // kBroadcast: from the communicator's rank 0 to all
  Kind kind = Kind::kSend;
  int32_t peer = 0;  // rank in the communicator
  ByteRange range;   // in the send arena or in the destination
  friend bool operator==(const Transmission&, const Transmission&) = default;
};

// Messages that one communicator exchanges together.
struct Round {
  size_t seat = 0;  // index in GroupPlan::seats
  std::vector<Transmission> messages;
  friend bool operator==(const Round&, const Round&) = default;
};

struct GroupPlan {
  std::vector<Seat> seats;
  std::vector<Round> rounds;  // in order
};

// How messages are cut: few and large messages keep NCCL fast; several rounds let digests begin before the last byte
// arrives.
struct RoundOptions {
  int32_t max_rounds = 4;                 // for each pair of a source and a slice
  int64_t min_message_bytes = 256 << 20;  // below twice this size a pair's bytes are one round

  absl::Status Validate() const;  // INVALID_ARGUMENT reason BAD_OPTIONS
};

// `copies`: those of all pairs, see SyncPlan::copies().
GroupPlan PlanOfSource(const GroupShape& shape, int32_t rank, const std::vector<Copy>& copies,
                       const RoundOptions& options);
// `copies`: those of this receiver's slice, see SyncPlan::CopiesTo(receiver % P).
GroupPlan PlanOfReceiver(const GroupShape& shape, int32_t receiver, const std::vector<Copy>& copies,
                         const RoundOptions& options);

// A message of `bytes` between all members that will exchange messages, in every communicator. The first message
// between two members sets up their connection, which is slow.
std::vector<Round> WarmUp(const GroupPlan& plan, const GroupShape& shape, bool source, int64_t bytes);

// Cuts the copies of one pair into rounds, in order. The last round is the smallest, because its bytes are digested
// after the transfer has ended. The result depends on the pair only, so both ends cut in the same places.
std::vector<std::vector<Copy>> CutIntoRounds(const std::vector<Copy>& copies, const RoundOptions& options);

}  // namespace syncopate::synchronizer::nccl
