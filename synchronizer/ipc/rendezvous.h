#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace syncopate::synchronizer::ipc {

// The address of an end of the transport "ipc", and the memory that it lends in this attempt. The synchronizer passes
// it on as one line of text: "ipc1 <host> <memory> <socket path>".
struct Rendezvous {
  std::string host;     // HostId() of the process
  uint64_t memory = 0;  // MemoryInfo::id; of a receiver's shadow, so that no peer reads the live weights by mistake
  std::string socket;   // path

  std::string ToString() const;
  // INVALID_ARGUMENT reason BAD_RENDEZVOUS.
  static absl::StatusOr<Rendezvous> Parse(const std::string& text);
  friend bool operator==(const Rendezvous&, const Rendezvous&) = default;
};

// Equal iff two processes run in the same boot of the same machine, in any container.
absl::StatusOr<std::string> HostId();

}  // namespace syncopate::synchronizer::ipc
