#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "synchronizer/ipc/exported_memory.h"
#include "synchronizer/ipc/wire.h"

namespace syncopate::synchronizer::ipc {

// What an upstream lends, to whom, and what it has to tell them: the decisions of IpcServer, without its sockets. A
// session is one connection of one downstream. Not thread-safe.
class OfferTable {
 public:
  using SessionId = int64_t;

  // Memory that is lent in one attempt.
  struct Offer {
    int64_t attempt = 0;
    PolicyVersion version;
    uint64_t fingerprint = 0;
    SharedMemory memory;
    bool complete = false;          // all bytes are there; else Advance says what is
    std::vector<int64_t> progress;  // as in wire.h, one for each source
  };

  struct Action {
    SessionId session = 0;
    Message message;
    SharedMemory handles;  // whose descriptors travel with the message; null: none
  };
  using Actions = std::vector<Action>;
  static constexpr size_t kWithdrawnKept = 64;

  // Lends from now on. Another offer of the same attempt is withdrawn; the same one again changes nothing.
  Actions Add(Offer offer);
  // More has arrived from `source`. Ignores attempts that are not offered.
  Actions Advance(int64_t attempt, int32_t source, int64_t bytes);
  // Nothing is missing any more.
  Actions Complete(int64_t attempt);
  // The offer is over: who reads is told why, and so is who comes later (of the newest kWithdrawnKept offers).
  Actions Withdraw(int64_t attempt, const absl::Status& why);
  // The attempt has ended for its owner. What is complete stays readable until Reclaim; whoever waits for bytes that
  // will never come is told UNAVAILABLE reason PEER_LOST.
  Actions Retire(int64_t attempt);
  // The memory will hold the bytes of `version`: whoever reads it is told ABORTED reason SUPERSEDED. Who comes later
  // is told the same if that is a newer version than was offered; else UNAVAILABLE reason PEER_LOST, as there may be no
  // newer one to wait for.
  Actions Reclaim(uint64_t memory_id, const PolicyVersion& version);

  // A message of a downstream. An error means that the session is to be closed.
  absl::StatusOr<Actions> OnMessage(SessionId session, const Message& message);
  void OnGone(SessionId session);

  int64_t readers(int64_t attempt) const;
  size_t offers() const { return offers_.size(); }

 private:
  Actions Drop(int64_t attempt, const absl::Status& why);
  Actions OnWant(SessionId session, const Want& want);
  absl::Status Check(const Want& want) const;
  Actions SendToReaders(int64_t attempt, const Message& message) const;
  Actions GetProgress(const Offer& offer) const;

  std::map<int64_t, Offer> offers_;            // by attempt
  std::map<int64_t, absl::Status> withdrawn_;  // by attempt, why
  std::map<SessionId, int64_t> reading_;       // sessions that hold a grant, and of which attempt
};

}  // namespace syncopate::synchronizer::ipc
