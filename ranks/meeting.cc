#include "ranks/meeting.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace syncopate {
namespace {

absl::StatusOr<std::unique_ptr<Communicator>> MeetOverSockets(const RankGroup& group, RankListener* listener,
                                                              const RankSecret& secret,
                                                              const std::vector<HostPort>& addresses,
                                                              const RankPlace::GoOn& go_on) {
  return listener->meeting->Meet({.rank = group.rank,
                                  .world = group.world,
                                  .secret = secret,
                                  .meet = kRanksMeetWithin,
                                  .deadline = group.call_deadline,
                                  .security = group.security,
                                  .listen_key = listener->key},
                                 addresses, go_on);
}

}  // namespace

absl::StatusOr<RankListener> RankListener::Open(const RankPlace& place, const HostPort& listen,
                                                const std::string& key) {
  RankListener listener{.key = key};
  if (place.join != nullptr) return listener;
  SYNCOPATE_ASSIGN_OR_RETURN(listener.meeting, SocketMeeting::Open(listen, key));
  return listener;
}

absl::StatusOr<HostPort> ReplaceWildcard(const std::string& told, const std::string& host) {
  SYNCOPATE_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(told));
  if (address.IsWildcard()) address.host = host;
  return address;
}

absl::StatusOr<std::unique_ptr<Communicator>> MeetRanks(
    const RankPlace& place, const RankGroup& group, RankListener* listener, const std::vector<std::string>& others,
    const std::function<absl::Status(const RankInvitation&)>& invite, const RankPlace::GoOn& go_on) {
  if (place.join != nullptr) {
    SYNCOPATE_ASSIGN_OR_RETURN(const std::string id, place.new_id());
    SYNCOPATE_RETURN_IF_ERROR(invite({.id = id}));
    return place.join(id, /*rank=*/0, go_on);
  }
  const RankSecret secret = DrawRankSecret();
  RankInvitation invitation{.addresses = {listener->address()}, .secret = std::string(secret.data(), secret.size())};
  invitation.addresses.insert(invitation.addresses.end(), others.begin(), others.end());
  SYNCOPATE_RETURN_IF_ERROR(invite(invitation));
  // Rank 0 dials nobody.
  return MeetOverSockets(group, listener, secret, std::vector<HostPort>(invitation.addresses.size()), go_on);
}

absl::StatusOr<std::unique_ptr<Communicator>> FollowInvitation(const RankPlace& place, const RankGroup& group,
                                                               RankListener* listener, const std::string& rank0_host,
                                                               const RankInvitation& invitation,
                                                               const RankPlace::GoOn& go_on) {
  if (place.join != nullptr) return place.join(invitation.id, group.rank, go_on);
  SYNCOPATE_ASSIGN_OR_RETURN(const RankSecret secret, ParseRankSecret(invitation.secret));
  std::vector<HostPort> addresses;
  for (const std::string& told : invitation.addresses) {
    // Rank 0 has replaced the wildcards of the other ranks.
    auto address = ReplaceWildcard(told, rank0_host);
    if (!address.ok()) return RankLost(absl::StrCat("rank ", addresses.size(), " told no address but '", told, "'"));
    addresses.push_back(*std::move(address));
  }
  return MeetOverSockets(group, listener, secret, addresses, go_on);
}

}  // namespace syncopate
