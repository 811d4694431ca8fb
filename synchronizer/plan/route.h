#pragma once

#include <cstdint>
#include <vector>

#include "synchronizer/plan/sync_plan.h"

namespace syncopate::synchronizer {

// Who serves bytes: a source rank from its send arena, or a replica (the rank of it that holds the same slice) from the
// shadow arena into which it receives them.
struct Upstream {
  enum class Kind : uint8_t { kSource, kReplica };
  Kind kind = Kind::kSource;
  int32_t index = 0;
  friend bool operator==(const Upstream&, const Upstream&) = default;
};

// What one replica takes from one upstream in one go.
struct Fetch {
  int32_t round = 0;
  Upstream upstream;
  std::vector<size_t> copies;  // indices in the list that Routes() was given, all of one source; never empty
  friend bool operator==(const Fetch&, const Fetch&) = default;
};

struct RouteOptions {
  int32_t sources = 1;   // T
  int32_t replicas = 1;  // M
  int32_t slice = 0;     // the destination rank of the copies, of `slices`: the tensor-parallel size P
  int32_t slices = 1;
};

// From whom, and in which order, each of M replicas fetches the copies of one slice; [replica] -> fetches by round.
// Every copy reaches every replica exactly once.
//   M <= T: direct. In round j receiver i = replica * P + slice takes what source (i + j) mod T has for it: each round
//     is a matching of sources and receivers if M * P <= T, else sources share the receivers evenly.
//   M > T: one chain a source, and a source sends each byte once. In round j replica m takes what source q = (m + j)
//   mod T
//     had, from its predecessor in q's chain; that is the source itself for the first. The chain of q visits the
//     replicas of q's residue class modulo T in ascending order, then those of class q - 1, q - 2, ... So in each round
//     the predecessors are distinct, and a predecessor either finished that part in an earlier round or receives it in
//     the same one, in which case it is relayed chunk by chunk.
std::vector<std::vector<Fetch>> Routes(const std::vector<Copy>& copies, const RouteOptions& options);

}  // namespace syncopate::synchronizer
