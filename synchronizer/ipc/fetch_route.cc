#include "synchronizer/ipc/fetch_route.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "synchronizer/plan/route.h"

namespace syncopate::synchronizer::ipc {
namespace {

std::string GetName(const SyncMember& member) {
  return absl::StrFormat("%s rank %d", member.id.replica_id, member.id.rank);
}

// A replica can be read from if it lends its shadow and is sent the same bytes.
bool AllRelay(const std::vector<SyncMember>& receivers) {
  return std::ranges::none_of(receivers, [&receivers](const SyncMember& member) {
    return member.rendezvous.empty() || member.base != receivers.front().base;
  });
}

std::vector<Fetch> CountFetches(const ReceiveRequest& request) {
  RouteOptions options;
  options.sources = static_cast<int32_t>(request.sources.size());
  options.slices = std::max(request.world, 1);
  options.slice = request.self % options.slices;
  options.replicas = std::max(request.replicas, 1);
  int32_t replica = request.self / options.slices;
  if (options.replicas > options.sources && !AllRelay(request.receivers)) {
    // As if there were as many sources as replicas: everybody reads directly, and starts at another source.
    options.replicas = options.sources;
    replica %= options.replicas;
  }
  return Routes(request.copies, options)[replica];
}

absl::StatusOr<FetchRoute::Upstream> Find(const ReceiveRequest& request, const Upstream& upstream,
                                          const std::string& host) {
  bool source = upstream.kind == Upstream::Kind::kSource;
  const std::vector<SyncMember>& members = source ? request.sources : request.receivers;
  int32_t world = std::max(request.world, 1);
  size_t index = source ? upstream.index : upstream.index * world + request.self % world;
  if (index >= members.size()) {
    return Error(absl::StatusCode::kUnavailable, "PEER_LOST",
                 absl::StrFormat("%s %d does not take part", source ? "source rank" : "replica", upstream.index));
  }
  FetchRoute::Upstream found;
  found.name = GetName(members[index]);
  SYNCOPATE_ASSIGN_OR_RETURN(found.where, Rendezvous::Parse(members[index].rendezvous));
  if (found.where.host != host) {
    return Error(absl::StatusCode::kFailedPrecondition, "OTHER_HOST",
                 absl::StrFormat("%s runs on another host; the ipc transport is for one host, set sync.transport to "
                                 "nccl or grpc",
                                 found.name));
  }
  return found;
}

}  // namespace

absl::StatusOr<FetchRoute> RouteFor(const ReceiveRequest& request, const std::string& host) {
  FetchRoute route;
  if (request.copies.empty()) return route;
  for (const Copy& copy : request.copies) {
    if (copy.source < static_cast<int32_t>(request.sources.size())) continue;
    return Error(absl::StatusCode::kUnavailable, "PEER_LOST", absl::StrFormat("source rank %d is gone", copy.source));
  }
  std::map<std::pair<Upstream::Kind, int32_t>, int32_t> known;
  for (const Fetch& fetch : CountFetches(request)) {
    auto [entry, fresh] =
        known.try_emplace({fetch.upstream.kind, fetch.upstream.index}, static_cast<int32_t>(route.upstreams.size()));
    if (fresh) {
      SYNCOPATE_ASSIGN_OR_RETURN(FetchRoute::Upstream upstream, Find(request, fetch.upstream, host));
      route.upstreams.push_back(std::move(upstream));
    }
    FetchRoute::Upstream& upstream = route.upstreams[entry->second];
    for (size_t index : fetch.copies) {
      const Copy& copy = request.copies[index];
      if (copy.bytes == 0) continue;
      int64_t from = fetch.upstream.kind == Upstream::Kind::kSource ? copy.source_offset : copy.destination_offset;
      route.segments.push_back({entry->second, copy.source, from, copy.destination_offset, copy.bytes});
      upstream.bytes = std::max(upstream.bytes, from + copy.bytes);
    }
  }
  return route;
}

}  // namespace syncopate::synchronizer::ipc
