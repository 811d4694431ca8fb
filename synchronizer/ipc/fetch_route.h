#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "synchronizer/ipc/fetch_cursor.h"
#include "synchronizer/ipc/rendezvous.h"
#include "synchronizer/transport/transport.h"

namespace syncopate::synchronizer::ipc {

// The upstreams from which a receiver reads, and the segments in order.
struct FetchRoute {
  struct Upstream {
    std::string name;  // for people: "source rank 1", "rollouter-2 rank 0"
    Rendezvous where;
    int64_t bytes = 0;  // that its memory must at least have
  };
  std::vector<Upstream> upstreams;
  std::vector<Segment> segments;
};

// This receiver's part of Routes() for a request. A source is read at the source's offsets; another replica is read at
// the destination's offsets, because it has the same slice at the same place. Every receiver of an attempt computes its
// route from the same facts. If some receiver does not relay (its rendezvous is empty), or not all are sent the same
// bytes (base weights only to some), all receivers read from the sources.
//
// UNAVAILABLE reason PEER_LOST if a source that is needed is not in the request; INVALID_ARGUMENT reason
// BAD_RENDEZVOUS; FAILED_PRECONDITION reason OTHER_HOST, naming the member, if one is not on `host`.
absl::StatusOr<FetchRoute> RouteFor(const ReceiveRequest& request, const std::string& host);

}  // namespace syncopate::synchronizer::ipc
