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

// Ranks that are processes, over TCP and host memory: a star, whose middle is rank 0. Every call is one frame
// from each rank to rank 0, which adds up in rank order, and one back; a frame's header names the call, its number and
// its bytes, and rank 0 compares them before it takes anything. What moves is not encrypted: ranks belong on a network
// of their own, as with NCCL.
namespace syncopate {

// Who knows it may be a rank. Never to be logged.
using RankSecret = std::array<char, 32>;
RankSecret DrawRankSecret();
// As rank 0 sent it. RANK_LOST if that is of another size.
absl::StatusOr<RankSecret> ParseRankSecret(const std::string& bytes);

// What rank 0 does first; then the others are told address and secret, and then it waits for them.
class RankMeeting {
 public:
  // Errors as TcpListener::Open.
  static absl::StatusOr<RankMeeting> Open(const std::string& host, const RankSecret& secret);

  uint16_t port() const { return listener_.port(); }
  // Rank 0 of `world`, as soon as all others have come. Both sides prove that they know the secret without showing it;
  // a connection that does not is hung up on. UNAVAILABLE (reason RANK_LOST) naming the ranks that did not come within
  // `meet`. `deadline` is that of each later call. `go_on` is asked again and again; its error ends the wait.
  absl::StatusOr<std::unique_ptr<Communicator>> Meet(int32_t world, absl::Duration meet, absl::Duration deadline,
                                                     const std::function<absl::Status()>& go_on = nullptr);

 private:
  RankMeeting(TcpListener listener, const RankSecret& secret) : listener_(std::move(listener)), secret_(secret) {}

  TcpListener listener_;
  RankSecret secret_;
};

// Rank `rank` > 0. RANK_LOST if rank 0 is not at `address` or does not answer within `meet`; PERMISSION_DENIED (reason
// WRONG_SECRET) if it has another secret.
absl::StatusOr<std::unique_ptr<Communicator>> JoinRanks(const HostPort& address, const RankSecret& secret, int32_t rank,
                                                        int32_t world, absl::Duration meet, absl::Duration deadline);

}  // namespace syncopate
