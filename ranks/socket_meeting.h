#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/host_port.h"
#include "base/status.h"
#include "ranks/communicator.h"
#include "ranks/tcp_socket.h"

namespace syncopate {

// A process that knows the secret can join as a rank. Never log it.
using RankSecret = std::array<char, 32>;
RankSecret DrawRankSecret();
// Parses the bytes that rank 0 sent. RANK_LOST if they have another size.
absl::StatusOr<RankSecret> ParseRankSecret(const std::string& bytes);

struct SocketGroup {
  int32_t rank = 0;
  int32_t world = 1;
  RankSecret secret = {};
  absl::Duration meet = absl::Minutes(2);
  absl::Duration deadline = absl::Minutes(1);  // of each call: how long it waits for a rank that sends nothing
  SocketSecurity security = nullptr;           // null: the connections are not encrypted
  std::string listen_key = "ranks_listen";     // the configuration's key of Open()'s address, for errors
};

// How one rank, a process, connects to each other rank: Open() it, tell the others its address, then Meet() when all
// addresses are known. The rank dials those below it and accepts those above it; both ends prove that they know the
// secret without sending it. Used by one thread.
class SocketMeeting {
 public:
  // Listens at `listen`; port 0 is any free one. `key` names the address in errors. INVALID_ARGUMENT (reason
  // BAD_ADDRESS) or UNAVAILABLE (reason SYSTEM), with the remedy.
  static absl::StatusOr<SocketMeeting> Open(const HostPort& listen, const std::string& key);

  // The address that this rank listens at. Its host is as it was given.
  const HostPort& address() const { return address_; }
  // Blocks until this rank is connected to all others. `addresses[r]` is where rank r is reached; those of this rank
  // and of higher ones are not used. UNAVAILABLE (reason RANK_LOST) with the address of a rank that does not answer, or
  // the ranks that have not come, within `group.meet`; PERMISSION_DENIED (reason WRONG_SECRET) if the process at an
  // address has another secret; the errors of `group.security`. A connection without the proof is closed and harms
  // nobody. `go_on` is called repeatedly; its error ends the wait.
  absl::StatusOr<std::unique_ptr<Communicator>> Meet(const SocketGroup& group, const std::vector<HostPort>& addresses,
                                                     const SocketGoOn& go_on = nullptr);

 private:
  SocketMeeting(TcpListener listener, HostPort address)
      : listener_(std::move(listener)), address_(std::move(address)) {}
  absl::Status Accept(const SocketGroup& group, absl::Time until, const SocketGoOn& go_on,
                      std::vector<TcpSocket>* peers);

  TcpListener listener_;
  HostPort address_;
};

}  // namespace syncopate
