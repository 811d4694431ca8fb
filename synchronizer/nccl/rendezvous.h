#pragma once

#include <array>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "synchronizer/messages.h"

namespace syncopate::synchronizer::nccl {

// The id by which the members of a new communicator meet (ncclUniqueId). It contains an address and a secret: it
// travels only over the members' authenticated streams and is never logged.
using UniqueId = std::array<char, 128>;

// The data that a member of the transport "nccl" sends to the others through the synchronizer, as one line of text:
// "nccl1 <version> <gpu> <kept group or -> [<unique id in hexadecimal> ...]".
struct Rendezvous {
  int version = 0;            // NCCL's own number, e.g. 22809
  std::string gpu;            // UUID
  std::string kept;           // the attempt's group if this member still has its communicators; else ""
  std::vector<UniqueId> ids;  // from source rank 0, if the group has no communicators: one id for each

  std::string ToString() const;
  // INVALID_ARGUMENT reason BAD_RENDEZVOUS.
  static absl::StatusOr<Rendezvous> Parse(const std::string& text);
  friend bool operator==(const Rendezvous&, const Rendezvous&) = default;
};

// Finds errors that are known before a communicator is formed or used. FAILED_PRECONDITION naming the members: reason
// NCCL_MISMATCH if their NCCL versions differ, DUPLICATE_GPU if two are on one GPU, MIXED_PAYLOAD if not all receivers
// are sent the same weights. INVALID_ARGUMENT reason BAD_RENDEZVOUS. UNAVAILABLE reason GROUP_LOST if there are no ids
// and some member does not keep `group`: every member gets this error, so none waits, and the next attempt forms new
// communicators.
absl::Status CheckMembers(const std::vector<SyncMember>& sources, const std::vector<SyncMember>& receivers,
                          const std::string& group);

}  // namespace syncopate::synchronizer::nccl
