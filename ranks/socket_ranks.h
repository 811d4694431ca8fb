#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/host_port.h"
#include "base/status.h"
#include "ranks/communicator.h"
#include "ranks/tcp_socket.h"

// Ranks that are processes, over TCP and host memory: a star with rank 0 in the middle. Every call is one frame from each
// rank to rank 0, which sums in rank order, and one frame back. A frame's header names the call, its number and its bytes;
// rank 0 compares them before it accepts data. Nothing is encrypted: ranks need a private network, as with NCCL.
namespace syncopate {

// A process that knows the secret can join as a rank. Never log it.
using RankSecret = std::array<char, 32>;
RankSecret DrawRankSecret();
// Parses the bytes that rank 0 sent. RANK_LOST if they have another size.
absl::StatusOr<RankSecret> ParseRankSecret(const std::string& bytes);

// Rank 0's side of forming a group: Open() it, send port and secret to the other ranks, then Meet() waits for them.
class RankMeeting {
 public:
  // Listens at `host`. Errors as TcpListener::Open.
  static absl::StatusOr<RankMeeting> Open(const std::string& host, const RankSecret& secret);

  uint16_t port() const { return listener_.port(); }
  // Blocks until all other ranks have come; returns rank 0 of `world`. Both sides prove that they know the secret without
  // sending it; a connection without the proof is closed. UNAVAILABLE (reason RANK_LOST) with the number of ranks that did
  // not come within `meet`. `deadline`: of each later call. `go_on` is called repeatedly; its error ends the wait.
  absl::StatusOr<std::unique_ptr<Communicator>> Meet(int32_t world, absl::Duration meet, absl::Duration deadline,
                                                     const std::function<absl::Status()>& go_on = nullptr);

 private:
  RankMeeting(TcpListener listener, const RankSecret& secret) : listener_(std::move(listener)), secret_(secret) {}

  TcpListener listener_;
  RankSecret secret_;
};

// Joins as rank `rank` > 0. RANK_LOST if rank 0 is not at `address` or does not answer within `meet`; PERMISSION_DENIED
// (reason WRONG_SECRET) if the process there has another secret.
absl::StatusOr<std::unique_ptr<Communicator>> JoinRanks(const HostPort& address, const RankSecret& secret, int32_t rank,
                                                        int32_t world, absl::Duration meet, absl::Duration deadline);

}  // namespace syncopate
