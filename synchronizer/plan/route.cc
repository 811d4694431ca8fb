#include "synchronizer/plan/route.h"

#include <algorithm>
#include <utility>

// If there are more replicas than sources, replicas relay parts to each other: every source sends each of its bytes
// once, and every replica reads from one upstream at a time and is read by one replica at a time. Replicas are divided
// into classes by their number modulo the sources (T); in round r, class k takes part (k + r) mod T, in a chain through
// the class.
namespace syncopate::synchronizer {
namespace {

// The upstream of replica `m` in the chain of the part that it takes in `round`, when M > T.
Upstream Predecessor(int32_t m, int32_t round, const RouteOptions& options) {
  const int32_t sources = options.sources;
  const int32_t klass = m % sources;
  if (m >= sources) return {Upstream::Kind::kReplica, m - sources};  // the previous replica of its residue class
  int32_t part = (klass + round) % sources;
  if (round == 0) return {Upstream::Kind::kSource, part};
  // The first replica of a class follows the last replica of the class that took this part in the previous round.
  int32_t before = (klass + 1) % sources;
  int32_t last = before + (options.replicas - 1 - before) / sources * sources;
  return {Upstream::Kind::kReplica, last};
}

}  // namespace

std::vector<std::vector<Fetch>> Routes(const std::vector<Copy>& copies, const RouteOptions& options) {
  std::vector<std::vector<size_t>> parts(options.sources);  // indices of copies, by source
  for (size_t i = 0; i < copies.size(); ++i) parts[copies[i].source].push_back(i);
  // Each replica begins with another source, so that no two read from one source at the same time.
  const bool direct = options.replicas <= options.sources;
  std::vector<std::vector<Fetch>> routes(options.replicas);
  for (int32_t m = 0; m < options.replicas; ++m) {
    int32_t start = direct ? m * options.slices + options.slice : m;
    for (int32_t round = 0; round < options.sources; ++round) {
      int32_t part = (start + round) % options.sources;
      if (parts[part].empty()) continue;
      Upstream upstream = direct ? Upstream{Upstream::Kind::kSource, part} : Predecessor(m, round, options);
      routes[m].push_back({round, upstream, parts[part]});
    }
  }
  return routes;
}

}  // namespace syncopate::synchronizer
