#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/manifest.h"
#include "base/policy_version.h"
#include "synchronizer/messages.h"
#include "synchronizer/plan/sync_plan.h"

// One way of moving weights, as its two ends see it. Every transport passes tests/support/transport_conformance.h.
//
// Receivers pull (inproc, grpc, ipc), or sources push and all members form one group (nccl). Either way the order of
// calls in one attempt is, on each member: Open, then Start (source) or Receive (receiver), then Close; an attempt may
// end after any of them. In a rehearsal (Prepare::rehearsal) there is no version: Start forms the group and sends
// nothing, and a receiver is called Connect in place of Receive.
namespace syncopate::synchronizer {

inline constexpr int64_t kChunkBytes = 1 << 20;  // unit of a copy, of flow control and of cancellation

// The source's end. Thread-safe.
class SourceTransport {
 public:
  virtual ~SourceTransport() = default;
  virtual std::string name() const = 0;
  // Gets ready to send for one attempt; the answer tells receivers where to find this source. Does not block on peers.
  virtual absl::StatusOr<std::string> Open(const Prepare& attempt) = 0;
  // All members have agreed. Where sources push, starts to send on a thread of its own; where receivers pull there is
  // nothing to do. Does not block. After OK `on_done` is called exactly once, by any thread, perhaps before this
  // returns: OK when this source has nothing left to do, or why it failed. After an error it is never called.
  virtual absl::Status Start(const Transfer& /*attempt*/, std::function<void(absl::Status)> on_done) {
    on_done(absl::OkStatus());
    return absl::OkStatus();
  }
  // The attempt is over for all receivers, or was never opened. Makes what Start began end soon, with an error.
  // Idempotent; does not block.
  virtual void Close(int64_t attempt) = 0;
};

// These bytes of the destination have arrived; or, if `stream` is not null, will have arrived when the work that is on
// that CUDA stream now is done. Quick; may be called by several threads.
using Arrived = std::function<void(ByteRange destination, void* stream)>;

struct ReceiveRequest {
  int64_t attempt = 0;
  PolicyVersion version;
  uint64_t manifest_fingerprint = 0;
  std::vector<SyncMember> sources;    // by rank
  std::vector<SyncMember> receivers;  // by (replica_id, rank): this one, and the others if this transport needs them
  int32_t self = 0;                   // index in `receivers`
  int32_t replicas = 1;               // of these receivers
  int32_t world = 1;                  // tensor-parallel ranks of each replica
  std::string group;                  // GroupName of sources and receivers
  std::vector<Copy> copies;           // what this rank's plan asks for
  absl::Time deadline;                // of the clock that the transport was made with
  // Each byte of the copies is announced exactly once, in ranges of whole copies or chunks of them; all of them before
  // Receive returns OK. Never null.
  Arrived on_arrived = [](ByteRange, void*) {};
  // At most once, before the first byte of the destination is written. Never null.
  std::function<void()> on_writing = [] {};
  // At most once, when what had to be formed or mapped is there and bytes begin to move: the time until then counts as
  // preparing. Never null.
  std::function<void()> on_connected = [] {};
};

// The receiver's end. Thread-safe; one Receive at a time and destination.
class ReceiverTransport {
 public:
  virtual ~ReceiverTransport() = default;
  virtual std::string name() const = 0;
  // Gets ready to receive for one attempt; the answer tells the others where to find this receiver, if they need to.
  // Does not block on peers.
  virtual absl::StatusOr<std::string> Open(const Prepare& /*attempt*/) { return std::string(); }
  // Brings all copies into `destination`, which nobody else writes meanwhile. Blocks until the last byte is there, or
  // will be in the order of the streams that were announced. DEADLINE_EXCEEDED reason DEADLINE, CANCELLED soon after
  // `stop` is requested, UNAVAILABLE reason PEER_LOST if a source is gone, else what the source says (SUPERSEDED,
  // VERSION_NOT_STAGED, ...). After an error the destination holds garbage, unless on_writing was never called, and
  // nothing writes to it any more.
  virtual absl::Status Receive(const ReceiveRequest& request, char* destination, std::stop_token stop) = 0;
  // Whether the sources have what Receive would bring: OK, or what it would say at once. Moves nothing. Blocks for a
  // round trip to the sources, at most until the deadline or `stop`. OK where nobody can be asked.
  virtual absl::Status Probe(const ReceiveRequest& /*request*/, std::stop_token /*stop*/) { return absl::OkStatus(); }
  // Forms what Receive would need for the same request, on a thread of its own, where there is anything to form. Does
  // not block: a Receive of another attempt may come meanwhile. `done` is called exactly once, by any thread, perhaps
  // before this returns, with OK or what Receive would say.
  virtual void Connect(const ReceiveRequest& /*request*/, std::function<void(absl::Status)> done) {
    done(absl::OkStatus());
  }
  // The attempt is over: whoever still reads from this receiver is let down, and what Connect began ends soon. Once for
  // each Open that succeeded, after its Receive or Connect has returned. Does not block.
  virtual void Close(int64_t /*attempt*/) {}
};

}  // namespace syncopate::synchronizer
