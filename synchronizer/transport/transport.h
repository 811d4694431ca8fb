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

// One transport of weights: its source end and its receiver end. Every transport passes
// tests/support/transport_conformance.h.
//
// Either receivers pull (inproc, grpc, ipc), or sources push and all members form one group (nccl). In both cases the
// order of calls in one attempt is, on each member: Open, then Start (source) or Receive (receiver), then Close; an
// attempt may end after any of them. In a rehearsal (Prepare::rehearsal) there is no version: Start forms the group and
// sends nothing, and the receiver's call is Connect instead of Receive.
namespace syncopate::synchronizer {

inline constexpr int64_t kChunkBytes = 1 << 20;  // unit of a copy, of flow control and of cancellation

// The source's end. Thread-safe.
class SourceTransport {
 public:
  virtual ~SourceTransport() = default;
  virtual std::string name() const = 0;
  // Prepares to send for one attempt. Returns the rendezvous by which receivers find this source. Does not wait for
  // peers.
  virtual absl::StatusOr<std::string> Open(const Prepare& attempt) = 0;
  // Call when all members have agreed. A transport that pushes starts to send on a thread of its own; a transport whose
  // receivers pull does nothing. Does not block. After OK `on_done` is called exactly once, by any thread, perhaps
  // before this returns: with OK when this source has nothing left to do, or with its error. After an error it is never
  // called.
  virtual absl::Status Start(const Transfer& /*attempt*/, std::function<void(absl::Status)> on_done) {
    on_done(absl::OkStatus());
    return absl::OkStatus();
  }
  // Call when the attempt is over for all receivers, or was never opened. What Start began ends soon, with an error.
  // Idempotent; does not block.
  virtual void Close(int64_t attempt) = 0;
};

// These bytes of the destination have arrived. If `stream` is not null, they will have arrived when the work now on
// that CUDA stream is done. Quick; may be called by several threads.
using Arrived = std::function<void(ByteRange destination, void* stream)>;

struct ReceiveRequest {
  int64_t attempt = 0;
  PolicyVersion version;
  uint64_t manifest_fingerprint = 0;
  std::vector<SyncMember> sources;  // by rank
  std::vector<SyncMember>
      receivers;             // by (replica_id, rank): this receiver, and the others if the transport needs them
  int32_t self = 0;          // index in `receivers`
  int32_t replicas = 1;      // number of replicas among `receivers`
  int32_t world = 1;         // tensor-parallel ranks of each replica
  std::string group;         // GroupName of sources and receivers
  std::vector<Copy> copies;  // the copies that this rank's plan asks for
  absl::Time deadline;       // on the clock with which the transport was made
  // Announces each byte of the copies exactly once, in ranges of whole copies or chunks of them; all of them before
  // Receive returns OK. Never null.
  Arrived on_arrived = [](ByteRange, void*) {};
  // Called at most once, before the first byte of the destination is written. Never null.
  std::function<void()> on_writing = [] {};
  // Called at most once, when communicators are formed and memory is mapped and bytes begin to move; the time until
  // then counts as preparing. Never null.
  std::function<void()> on_connected = [] {};
};

// The receiver's end. Thread-safe; one Receive at a time for each destination.
class ReceiverTransport {
 public:
  virtual ~ReceiverTransport() = default;
  virtual std::string name() const = 0;
  // Prepares to receive for one attempt. Returns the rendezvous by which other members find this receiver, if they need
  // one. Does not wait for peers.
  virtual absl::StatusOr<std::string> Open(const Prepare& /*attempt*/) { return std::string(); }
  // Brings all copies into `destination`, which no other thread may write meanwhile. Blocks until the last byte has
  // arrived, or will arrive in the order of the announced streams. DEADLINE_EXCEEDED reason DEADLINE, CANCELLED soon
  // after `stop` is requested, UNAVAILABLE reason PEER_LOST if a source is gone, else the source's error (SUPERSEDED,
  // VERSION_NOT_STAGED, ...). After an error the destination contains garbage, unless on_writing was never called, and
  // nothing writes to it any more.
  virtual absl::Status Receive(const ReceiveRequest& request, char* destination, std::stop_token stop) = 0;
  // Checks whether the sources have what Receive would bring: OK, or the error that Receive would return at once. Moves
  // no bytes. Blocks for a round trip to the sources, at most until the deadline or `stop`. OK if there is no source to
  // ask.
  virtual absl::Status Probe(const ReceiveRequest& /*request*/, std::stop_token /*stop*/) { return absl::OkStatus(); }
  // Forms what Receive would need for the same request, if anything, on a thread of its own. Does not block: a Receive
  // of another attempt may come meanwhile. `done` is called exactly once, by any thread, perhaps before this returns,
  // with OK or the error that Receive would return.
  virtual void Connect(const ReceiveRequest& /*request*/, std::function<void(absl::Status)> done) {
    done(absl::OkStatus());
  }
  // Call when the attempt is over: members that still read from this receiver get an error, and what Connect began ends
  // soon. Call once for each Open that succeeded, after its Receive or Connect has returned. Does not block.
  virtual void Close(int64_t /*attempt*/) {}
};

}  // namespace syncopate::synchronizer
