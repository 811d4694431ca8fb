#pragma once

#include <cstdint>
#include <vector>

#include "synchronizer/plan/sync_plan.h"

namespace syncopate::synchronizer {

// Where a replica reads bytes: from a source rank's send arena, or from the shadow arena of another replica (its rank
// with the same slice).
struct Upstream {
  enum class Kind : uint8_t { kSource, kReplica };
  Kind kind = Kind::kSource;
  int32_t index = 0;
  friend bool operator==(const Upstream&, const Upstream&) = default;
};

// The copies that one replica takes from one upstream in one round.
struct Fetch {
  int32_t round = 0;
  Upstream upstream;
  std::vector<size_t> copies;  // indices into the `copies` given to Routes(), all of one source; never empty
  friend bool operator==(const Fetch&, const Fetch&) = default;
};

struct RouteOptions {
  int32_t sources = 1;   // T
  int32_t replicas = 1;  // M
  int32_t slice = 0;     // the copies' destination rank, one of `slices`: the tensor-parallel size P
  int32_t slices = 1;
};

// Decides from which upstreams, and in which order, each of M replicas fetches the copies of one slice. The result is
// indexed by replica and lists the fetches by round. Every copy reaches every replica exactly once.
//   M <= T: direct. In round j receiver i = replica * P + slice takes the copies of source (i + j) mod T. Each round is a
//     matching of sources and receivers if M * P <= T; otherwise the receivers are spread evenly over the sources.
//   M > T: one chain for each source, and a source sends each byte once. In round j replica m takes the copies of source
//     q = (m + j) mod T from its predecessor in q's chain; the first in the chain reads from the source itself. The chain
//     of q visits the replicas of q's residue class modulo T in ascending order, then those of class q - 1, q - 2, ... So
//     in each round the predecessors are distinct. A predecessor either finished that part in an earlier round or
//     receives it in the same round; then the part is relayed chunk by chunk.
std::vector<std::vector<Fetch>> Routes(const std::vector<Copy>& copies, const RouteOptions& options);

}  // namespace syncopate::synchronizer
