#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "synchronizer/ipc/wire.h"
#include "synchronizer/lent_memory.h"

namespace syncopate::synchronizer::ipc {

// The decisions of IpcServer, without its sockets: which memory an upstream lends, to which sessions, and which
// messages they get. A session is one connection of one downstream. Not thread-safe.
class OfferTable {
 public:
  using SessionId = int64_t;

  // Memory that is lent in one attempt.
  struct Offer {
    int64_t attempt = 0;
    PolicyVersion version;
    uint64_t fingerprint = 0;
    SharedMemory memory;
    bool complete = false;          // all bytes are there; else see `progress` and Advance
    std::vector<int64_t> progress;  // bytes for each source, as in wire.h
    // Readers write to the memory, too, so one process at a time gets it (Want::borrower). It is free again when all of
    // that process's sessions with a grant have released it or are gone.
    bool exclusive = false;
  };

  struct Action {
    SessionId session = 0;
    Message message;
    SharedMemory handles;  // their descriptors are sent with the message; null: none
  };
  using Actions = std::vector<Action>;
  static constexpr size_t kWithdrawnKept = 64;

  // Lends from now on. Withdraws an earlier, different offer of the same attempt; repeating an offer changes nothing.
  Actions Add(Offer offer);
  // Records that `bytes` bytes from `source` are there. Ignores attempts that are not offered.
  Actions Advance(int64_t attempt, int32_t source, int64_t bytes);
  // Records that all bytes are there.
  Actions Complete(int64_t attempt);
  // Ends the offer: present readers are told why, and later ones too (for the newest kWithdrawnKept offers).
  Actions Withdraw(int64_t attempt, const absl::Status& why);
  // Call when the attempt has ended for its owner. A complete offer stays readable until Reclaim; readers of an
  // incomplete offer are told UNAVAILABLE reason PEER_LOST.
  Actions Retire(int64_t attempt);
  // Call before the memory is overwritten by `version`: its readers are told ABORTED reason SUPERSEDED. Later readers
  // are told the same if `version` is newer than the offered one; else UNAVAILABLE reason PEER_LOST, because there may
  // be no newer version to wait for.
  Actions Reclaim(uint64_t memory_id, const PolicyVersion& version);

  // Handles a message of a downstream. After an error the session must be closed.
  absl::StatusOr<Actions> OnMessage(SessionId session, const Message& message);
  void OnGone(SessionId session);

  int64_t readers(int64_t attempt) const;
  size_t offers() const { return offers_.size(); }

 private:
  Actions Drop(int64_t attempt, const absl::Status& why);
  Actions OnWant(SessionId session, const Want& want);
  absl::Status Check(SessionId session, const Want& want) const;
  bool IsOnLoan(SessionId session, const Want& want) const;  // to another process
  Actions SendToReaders(int64_t attempt, const Message& message) const;
  Actions GetProgress(const Offer& offer) const;

  std::map<int64_t, Offer> offers_;            // by attempt
  std::map<int64_t, absl::Status> withdrawn_;  // the reason, by attempt
  struct Reading {
    int64_t attempt = 0;
    uint64_t borrower = 0;
  };
  std::map<SessionId, Reading> reading_;  // the sessions with a grant
};

}  // namespace syncopate::synchronizer::ipc
