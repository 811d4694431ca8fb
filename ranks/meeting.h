#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/host_port.h"
#include "base/status.h"
#include "ranks/communicator.h"
#include "ranks/socket_meeting.h"

// How the ranks of a group, which are processes, get a communicator: on the CPU each rank listens and tells rank 0 its
// address, rank 0 invites the others, by a channel that the caller provides, and then all ranks connect.
namespace syncopate {

// How long ranks wait for each other, on both sides.
inline constexpr absl::Duration kRanksMeetWithin = absl::Minutes(2);

// Where one rank computes, and how ranks on such a device form a communicator.
struct RankPlace {
  // Called repeatedly during a wait; an error from it ends the wait.
  using GoOn = std::function<absl::Status()>;

  std::string name = "cpu";  // or "cuda:N"
  std::string gpu = {};      // the driver's name of the GPU; empty on the CPU
  // Rank 0 makes an id with new_id, and all ranks join by it. Both are null on the CPU, where ranks meet over TCP.
  std::function<absl::StatusOr<std::string>()> new_id = nullptr;
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(const std::string& id, int32_t rank, const GoOn& go_on)>
      join = nullptr;
};

// What rank 0 sends to the others. Never log it: a process that knows it can join as a rank.
struct RankInvitation {
  std::string id = {};                      // from RankPlace::new_id; empty for TCP
  std::vector<std::string> addresses = {};  // TCP only: host:port of each rank, in the order of ranks
  std::string secret = {};                  // RankSecret
};

struct RankGroup {
  int32_t rank = 0;
  int32_t world = 1;
  // The rest is unused if the RankPlace has `join`.
  absl::Duration call_deadline = absl::Minutes(1);  // of each call over TCP
  SocketSecurity security = nullptr;                // null: connections over TCP are not encrypted
};

// Where a rank listens for the others: opened before it says hello, which tells the address.
struct RankListener {
  // Listens at `listen` if ranks on `place` meet over TCP. `key` is the configuration's key of `listen`. Errors of
  // SocketMeeting::Open.
  static absl::StatusOr<RankListener> Open(const RankPlace& place, const HostPort& listen, const std::string& key);

  // host:port to tell the others; empty if the ranks do not meet over TCP. Its host may be a wildcard: a process that
  // is told replaces it by the host at which it reaches this rank (ReplaceWildcard).
  std::string address() const { return meeting.has_value() ? meeting->address().ToString() : ""; }

  std::optional<SocketMeeting> meeting = std::nullopt;
  std::string key = {};
};

// `told` with `host` in place of a wildcard host. INVALID_ARGUMENT (reason BAD_ADDRESS) if `told` is no host:port.
absl::StatusOr<HostPort> ReplaceWildcard(const std::string& told, const std::string& host);

// For rank 0. `others` are the addresses that the other ranks told, in the order of ranks; empty ones unless they meet
// over TCP. `invite` sends the invitation to all other ranks, which are already in contact with rank 0; over TCP this
// process then waits for them. Blocks for at most kRanksMeetWithin. UNAVAILABLE (reason RANK_LOST) if not all of them
// come; the errors of `invite`, of `go_on` and of `place`.
absl::StatusOr<std::unique_ptr<Communicator>> MeetRanks(
    const RankPlace& place, const RankGroup& group, RankListener* listener, const std::vector<std::string>& others,
    const std::function<absl::Status(const RankInvitation&)>& invite, const RankPlace::GoOn& go_on);

// For every other rank; `rank0_host` is where it reaches rank 0. Bound and errors as of MeetRanks.
absl::StatusOr<std::unique_ptr<Communicator>> FollowInvitation(const RankPlace& place, const RankGroup& group,
                                                               RankListener* listener, const std::string& rank0_host,
                                                               const RankInvitation& invitation,
                                                               const RankPlace::GoOn& go_on);

}  // namespace syncopate
