#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/status.h"
#include "ranks/communicator.h"

// How the ranks of a group, which are processes, get a communicator: rank 0 invites the others, by a channel that the
// caller provides, and then all ranks connect.
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
  std::string id = {};      // from RankPlace::new_id; empty for TCP
  uint16_t port = 0;        // TCP only: the port on rank 0's host where it listens for the others
  std::string secret = {};  // RankSecret
};

struct RankGroup {
  int32_t rank = 0;
  int32_t world = 1;
  absl::Duration call_deadline = absl::Minutes(1);  // of each call over TCP; unused if the RankPlace has `join`
};

// For rank 0. `invite` sends the invitation to all other ranks, which are already in contact with rank 0; over TCP this
// process then waits for them, listening at `host`. Blocks for at most kRanksMeetWithin. UNAVAILABLE (reason RANK_LOST)
// if not all of them come; the errors of `invite`, of `go_on` and of `place`.
absl::StatusOr<std::unique_ptr<Communicator>> MeetRanks(
    const RankPlace& place, const RankGroup& group, const std::string& host,
    const std::function<absl::Status(const RankInvitation&)>& invite, const RankPlace::GoOn& go_on);

// For every other rank; `host` is rank 0's. Bound and errors as of MeetRanks.
absl::StatusOr<std::unique_ptr<Communicator>> FollowInvitation(const RankPlace& place, const RankGroup& group,
                                                               const std::string& host,
                                                               const RankInvitation& invitation,
                                                               const RankPlace::GoOn& go_on);

}  // namespace syncopate
