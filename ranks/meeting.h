#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/status.h"
#include "ranks/communicator.h"

// How the ranks of a group, which are processes, come to have a communicator: rank 0 invites the others, by whatever way
// it has to them, and all meet.
namespace syncopate {

// How long ranks wait for each other to come, on both sides.
inline constexpr absl::Duration kRanksMeetWithin = absl::Minutes(2);

// Where one rank computes, and how ranks that compute on such a device find together.
struct RankPlace {
  // Asked again and again during a wait; its error ends that.
  using GoOn = std::function<absl::Status()>;

  std::string name = "cpu";  // or "cuda:N"
  std::string gpu = {};      // what its driver calls it; empty on the CPU
  // Rank 0 makes an id, by which all join. Null on the CPU, where ranks meet over TCP.
  std::function<absl::StatusOr<std::string>()> new_id = nullptr;
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(const std::string& id, int32_t rank, const GoOn& go_on)>
      join = nullptr;
};

// What rank 0 tells the others. Never to be logged: who knows it may be a rank.
struct RankInvitation {
  std::string id = {};      // of places that have one
  uint16_t port = 0;        // else: of rank 0's host, where it listens for them
  std::string secret = {};  // RankSecret
};

struct RankGroup {
  int32_t rank = 0;
  int32_t world = 1;
  absl::Duration call_deadline = absl::Minutes(1);  // of each call over TCP; places with an id have one of their own
};

// Rank 0's part: `invite` tells all others, which have come already; over TCP they are awaited at `host`, where this
// process listens. Blocks for at most kRanksMeetWithin. UNAVAILABLE (reason RANK_LOST) naming those that do not meet; the
// errors of `invite`, of `go_on` and of the place.
absl::StatusOr<std::unique_ptr<Communicator>> MeetRanks(
    const RankPlace& place, const RankGroup& group, const std::string& host,
    const std::function<absl::Status(const RankInvitation&)>& invite, const RankPlace::GoOn& go_on);

// Another rank's: `host` is rank 0's. The same bound and errors.
absl::StatusOr<std::unique_ptr<Communicator>> FollowInvitation(const RankPlace& place, const RankGroup& group,
                                                               const std::string& host,
                                                               const RankInvitation& invitation,
                                                               const RankPlace::GoOn& go_on);

}  // namespace syncopate
