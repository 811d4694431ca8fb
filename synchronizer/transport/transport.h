#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/policy_version.h"
#include "synchronizer/messages.h"
#include "synchronizer/plan/sync_plan.h"

// One way of moving weights, as its two ends see it. Every transport passes tests/support/transport_conformance.h.
namespace syncopate::synchronizer {

inline constexpr int64_t kChunkBytes = 1 << 20;  // unit of a copy, of flow control and of cancellation

// The source's end. Thread-safe.
class SourceTransport {
 public:
  virtual ~SourceTransport() = default;
  virtual std::string name() const = 0;
  // Gets ready to send for one attempt; the answer tells receivers where to find this source. Does not block on peers.
  virtual absl::StatusOr<std::string> Open(const Prepare& attempt) = 0;
  // The attempt is over for all receivers, or was never opened. Idempotent.
  virtual void Close(int64_t attempt) = 0;
};

struct ReceiveRequest {
  int64_t attempt = 0;
  PolicyVersion version;
  uint64_t manifest_fingerprint = 0;
  std::vector<std::string> rendezvous;  // of the sources, by rank
  std::vector<Copy> copies;             // what this rank's plan asks for
  absl::Time deadline;                  // of the clock that the transport was made with
};

// The receiver's end. Thread-safe; one Receive at a time and destination.
class ReceiverTransport {
 public:
  virtual ~ReceiverTransport() = default;
  virtual std::string name() const = 0;
  // Brings all copies into `destination`, which nobody else touches meanwhile. Blocks until the last byte is there.
  // DEADLINE_EXCEEDED reason DEADLINE, CANCELLED soon after `stop` is requested, UNAVAILABLE reason PEER_LOST if a
  // source is gone, else what the source says (SUPERSEDED, VERSION_NOT_STAGED, ...). After an error the destination
  // holds garbage, and nothing writes to it any more.
  virtual absl::Status Receive(const ReceiveRequest& request, char* destination, std::stop_token stop) = 0;
};

}  // namespace syncopate::synchronizer
