#pragma once

#include <cstdint>
#include <vector>

#include "base/manifest.h"
#include "synchronizer/plan/sync_plan.h"

// Who sends what to whom in one transfer over NCCL, and in which order. Pure functions: every member computes its own
// part from the same facts, and the parts fit.
namespace syncopate::synchronizer::nccl {

// The group of one attempt: T source ranks, then M replicas of P ranks each.
struct GroupShape {
  int32_t sources = 1;   // T
  int32_t replicas = 1;  // M
  int32_t world = 1;     // P

  int32_t receivers() const { return replicas * world; }
  // With more replicas than sources each byte leaves its source once, by broadcast to all replicas of the slice; else
  // every pair of a source and a receiver exchanges messages of its own.
  bool broadcasts() const { return replicas > sources; }
  // One for all members; with broadcasts one for each source and slice, of that source and the slice's replicas.
  int32_t communicators() const { return broadcasts() ? sources * world : 1; }
  friend bool operator==(const GroupShape&, const GroupShape&) = default;
};

// A member's place in one of the communicators.
struct Seat {
  int32_t communicator = 0;  // below GroupShape::communicators()
  int32_t size = 0;
  int32_t rank = 0;
  friend bool operator==(const Seat&, const Seat&) = default;
};

// One message, as one end sees it.
struct Transmission {
  enum class Kind : uint8_t { kSend, kReceive, kBroadcast };  // kBroadcast: from the communicator's rank 0 to all
  Kind kind = Kind::kSend;
  int32_t peer = 0;  // rank in the communicator
  ByteRange range;   // of the send arena or of the destination
  friend bool operator==(const Transmission&, const Transmission&) = default;
};

// Messages that one communicator exchanges at a time.
struct Round {
  size_t seat = 0;  // index in GroupPlan::seats
  std::vector<Transmission> messages;
  friend bool operator==(const Round&, const Round&) = default;
};

struct GroupPlan {
  std::vector<Seat> seats;
  std::vector<Round> rounds;  // in order
};

// How messages are cut: few and large keeps NCCL at its rate, several let digests begin before the last byte is there.
struct RoundOptions {
  int32_t max_rounds = 4;                 // for each pair of a source and a slice
  int64_t min_message_bytes = 256 << 20;  // below twice this a pair's bytes go in one round

  absl::Status Validate() const;  // INVALID_ARGUMENT reason BAD_OPTIONS
};

// `copies`: of all pairs, as SyncPlan::copies().
GroupPlan PlanOfSource(const GroupShape& shape, int32_t rank, const std::vector<Copy>& copies,
                       const RoundOptions& options);
// `copies`: of this receiver's slice, as SyncPlan::CopiesTo(receiver % P).
GroupPlan PlanOfReceiver(const GroupShape& shape, int32_t receiver, const std::vector<Copy>& copies,
                         const RoundOptions& options);

// A message of `bytes` between all that will exchange some, in every communicator: the first one sets up connections,
// which takes long.
std::vector<Round> WarmUp(const GroupPlan& plan, const GroupShape& shape, bool source, int64_t bytes);

// The copies of one pair cut into rounds, each a part of the list in its order. The last round is the smallest: what it
// brings is digested when the transfer is over. A function of the pair alone, so both its ends cut alike.
std::vector<std::vector<Copy>> CutIntoRounds(const std::vector<Copy>& copies, const RoundOptions& options);

}  // namespace syncopate::synchronizer::nccl
