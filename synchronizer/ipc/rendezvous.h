#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace syncopate::synchronizer::ipc {

// Where an end of the transport "ipc" listens, and which memory it will lend in this attempt. Travels through the
// synchronizer as one line of text: "ipc1 <host> <memory> <socket path>".
struct Rendezvous {
  std::string host;     // HostId() of the process
  uint64_t memory = 0;  // MemoryInfo::id; a receiver's shadow, so that nobody can mistake the live one for it
  std::string socket;   // path

  std::string ToString() const;
  // INVALID_ARGUMENT reason BAD_RENDEZVOUS.
  static absl::StatusOr<Rendezvous> Parse(const std::string& text);
  friend bool operator==(const Rendezvous&, const Rendezvous&) = default;
};

// Equal iff two processes run in the same boot of the same machine, whatever their containers.
absl::StatusOr<std::string> HostId();

}  // namespace syncopate::synchronizer::ipc
