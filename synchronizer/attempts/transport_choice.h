#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "synchronizer/messages.h"

namespace syncopate::synchronizer {

// A rank that can take part in a sync.
struct SyncPeer {
  MemberId id;
  std::vector<std::string> transports;  // names of the transports that it offers
  DeviceFacts facts = {};
  std::string layout = {};  // see Hello
  friend bool operator==(const SyncPeer&, const SyncPeer&) = default;
};

struct TransportChoice {
  std::string name;
  std::string reason;  // for people: why this transport was chosen: "one host, peer access, NVLink"
};

// Chooses the transport of a sync between these members: `requested`, or for "auto" the fastest one that the facts
// allow, in the order of kTransports. FAILED_PRECONDITION reason NO_COMMON_TRANSPORT if there is none, naming the
// member that cannot use the requested one; reason NCCL_MISMATCH if `requested` is nccl and the NCCL versions differ.
absl::StatusOr<TransportChoice> ChooseTransport(const std::string& requested, const std::vector<SyncPeer>& sources,
                                                const std::vector<SyncPeer>& receivers);

}  // namespace syncopate::synchronizer
