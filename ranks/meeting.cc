#include "ranks/meeting.h"

#include "base/host_port.h"
#include "ranks/socket_ranks.h"

namespace syncopate {

absl::StatusOr<std::unique_ptr<Communicator>> MeetRanks(
    const RankPlace& place, const RankGroup& group, const std::string& host,
    const std::function<absl::Status(const RankInvitation&)>& invite, const RankPlace::GoOn& go_on) {
  if (place.join != nullptr) {
    SYNCOPATE_ASSIGN_OR_RETURN(const std::string id, place.new_id());
    SYNCOPATE_RETURN_IF_ERROR(invite({.id = id}));
    return place.join(id, /*rank=*/0, go_on);
  }
  const RankSecret secret = DrawRankSecret();
  // Listens before it sends the address to the others.
  SYNCOPATE_ASSIGN_OR_RETURN(RankMeeting meeting, RankMeeting::Open(host, secret));
  SYNCOPATE_RETURN_IF_ERROR(invite({.port = meeting.port(), .secret = std::string(secret.data(), secret.size())}));
  return meeting.Meet(group.world, kRanksMeetWithin, group.call_deadline, go_on);
}

absl::StatusOr<std::unique_ptr<Communicator>> FollowInvitation(const RankPlace& place, const RankGroup& group,
                                                               const std::string& host,
                                                               const RankInvitation& invitation,
                                                               const RankPlace::GoOn& go_on) {
  if (place.join != nullptr) return place.join(invitation.id, group.rank, go_on);
  SYNCOPATE_ASSIGN_OR_RETURN(const RankSecret secret, ParseRankSecret(invitation.secret));
  return JoinRanks(HostPort{host, invitation.port}, secret, group.rank, group.world, kRanksMeetWithin,
                   group.call_deadline);
}

}  // namespace syncopate
