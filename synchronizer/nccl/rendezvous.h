#pragma once

#include <array>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "synchronizer/messages.h"

namespace syncopate::synchronizer::nccl {

// What the members of a new communicator meet by (ncclUniqueId). It is an address and a secret: it travels over the
// members' authenticated streams and is never logged.
using UniqueId = std::array<char, 128>;

// What a member of the transport "nccl" tells the others through the synchronizer, as one line of text:
// "nccl1 <version> <gpu> <kept group or -> [<unique id in hexadecimal> ...]".
struct Rendezvous {
  int version = 0;            // NCCL's own number, e.g. 22809
  std::string gpu;            // UUID
  std::string kept;           // the group of the attempt, if this member has its communicators already; else ""
  std::vector<UniqueId> ids;  // source rank 0, if the group has no communicators yet: one for each that it needs

  std::string ToString() const;
  // INVALID_ARGUMENT reason BAD_RENDEZVOUS.
  static absl::StatusOr<Rendezvous> Parse(const std::string& text);
  friend bool operator==(const Rendezvous&, const Rendezvous&) = default;
};

// What can be known to go wrong before a communicator exists, or one is used. OK, or FAILED_PRECONDITION naming the
// members: reason NCCL_MISMATCH if their NCCL versions differ, DUPLICATE_GPU if two sit on one GPU, MIXED_PAYLOAD
// if not all receivers are sent the same; INVALID_ARGUMENT reason BAD_RENDEZVOUS; UNAVAILABLE reason GROUP_LOST if
// there are no ids and some member does not keep `group`: then all members see it, nobody waits for anybody, and the
// next attempt forms new communicators.
absl::Status CheckMembers(const std::vector<SyncMember>& sources, const std::vector<SyncMember>& receivers,
                          const std::string& group);

}  // namespace syncopate::synchronizer::nccl
