#include "synchronizer/plan/route.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/synchronizer/plan/plan_fixtures.h"

namespace syncopate::synchronizer {
namespace {

// The other side of routes: the copies that `upstream` serves to other members, by (round, replica).
struct Serving {
  int32_t round = 0;
  int32_t replica = 0;
  std::vector<size_t> copies;
  friend bool operator==(const Serving&, const Serving&) = default;
};
std::vector<Serving> ServedBy(const Upstream& upstream, const std::vector<std::vector<Fetch>>& routes) {
  std::vector<Serving> served;
  for (size_t replica = 0; replica < routes.size(); ++replica) {
    for (const Fetch& fetch : routes[replica]) {
      if (fetch.upstream == upstream) served.push_back({fetch.round, static_cast<int32_t>(replica), fetch.copies});
    }
  }
  std::stable_sort(served.begin(), served.end(), [](const Serving& a, const Serving& b) { return a.round < b.round; });
  return served;
}

using Routing = std::vector<std::vector<Fetch>>;

Upstream Source(int32_t index) { return {Upstream::Kind::kSource, index}; }
Upstream Replica(int32_t index) { return {Upstream::Kind::kReplica, index}; }

// Two copies for each source; sources in `without` have none.
std::vector<Copy> MakeCopies(int32_t sources, const std::set<int32_t>& without = {}) {
  std::vector<Copy> copies;
  for (int64_t part = 0; part < 2; ++part) {
    for (int32_t source = 0; source < sources; ++source) {
      if (without.count(source) == 0) copies.push_back({source, 0, part * 100, (part * sources + source) * 100, 100});
    }
  }
  return copies;
}

// Checks that every copy reaches every replica once, from its source or from a replica that has it or is receiving it
// in the same round, and that no members wait for each other in a circle.
void CheckDelivery(const std::vector<Copy>& copies, const Routing& routes) {
  std::vector<std::map<size_t, int32_t>> round_of(routes.size());  // [replica] copy -> round
  for (size_t m = 0; m < routes.size(); ++m) {
    int32_t last = -1;
    for (const Fetch& fetch : routes[m]) {
      ASSERT_GT(fetch.round, last);
      last = fetch.round;
      ASSERT_FALSE(fetch.copies.empty());
      for (size_t copy : fetch.copies) ASSERT_TRUE(round_of[m].emplace(copy, fetch.round).second) << "twice";
    }
    ASSERT_EQ(round_of[m].size(), copies.size()) << "replica " << m << " misses something";
  }
  for (size_t m = 0; m < routes.size(); ++m) {
    for (const Fetch& fetch : routes[m]) {
      for (size_t copy : fetch.copies) {
        // Follows the chain up to the source: at most as many steps as there are replicas, never into a later round.
        Upstream at = fetch.upstream;
        int32_t round = fetch.round;
        for (size_t steps = 0; at.kind == Upstream::Kind::kReplica; ++steps) {
          ASSERT_LT(steps, routes.size()) << "a circle";
          ASSERT_LE(round_of[at.index].at(copy), round);
          round = round_of[at.index].at(copy);
          auto up = std::find_if(routes[at.index].begin(), routes[at.index].end(),
                                 [round](const Fetch& f) { return f.round == round; });
          at = up->upstream;
        }
        ASSERT_EQ(at.index, copies[copy].source);
      }
    }
  }
}

std::map<int32_t, std::multiset<std::pair<bool, int32_t>>> UpstreamsByRound(const std::vector<Routing>& slices) {
  std::map<int32_t, std::multiset<std::pair<bool, int32_t>>> by_round;
  for (const Routing& routes : slices) {
    for (const auto& fetches : routes) {
      for (const Fetch& fetch : fetches) {
        by_round[fetch.round].insert({fetch.upstream.kind == Upstream::Kind::kSource, fetch.upstream.index});
      }
    }
  }
  return by_round;
}

TEST(RouteTest, EveryByteReachesEveryReplicaOnceAndEachRoundIsAMatching) {
  for (int32_t sources = 1; sources <= 8; ++sources) {
    for (int32_t replicas = 1; replicas <= 8; ++replicas) {
      SCOPED_TRACE(absl::StrCat(sources, " sources, ", replicas, " replicas"));
      std::vector<Copy> copies = MakeCopies(sources);
      Routing routes = Routes(copies, {sources, replicas});
      ASSERT_NO_FATAL_FAILURE(CheckDelivery(copies, routes));
      for (const auto& [round, upstreams] : UpstreamsByRound({routes})) {
        EXPECT_EQ(upstreams.size(), static_cast<size_t>(replicas)) << "an idle receiver in round " << round;
        for (const auto& upstream : upstreams) EXPECT_EQ(upstreams.count(upstream), 1u) << "in round " << round;
      }
    }
  }
}

TEST(RouteTest, SourcesWithNothingForASliceAreLeftOut) {
  for (int32_t replicas = 1; replicas <= 8; ++replicas) {
    std::vector<Copy> copies = MakeCopies(4, /*without=*/{0, 2});
    Routing routes = Routes(copies, {4, replicas});
    ASSERT_NO_FATAL_FAILURE(CheckDelivery(copies, routes));
    for (const auto& fetches : routes) EXPECT_EQ(fetches.size(), 2u);
  }
}

TEST(RouteTest, ASourceSendsEachByteOnceWhereReplicasAreMany) {
  for (int32_t sources = 1; sources <= 4; ++sources) {
    Routing routes = Routes(MakeCopies(sources), {sources, sources + 3});
    for (int32_t source = 0; source < sources; ++source) {
      EXPECT_EQ(ServedBy(Source(source), routes).size(), 1u);
    }
  }
}

TEST(RouteTest, SlicesOfTensorParallelReplicasShareTheSourcesEvenly) {
  for (int32_t sources = 1; sources <= 8; ++sources) {
    for (int32_t replicas = 1; replicas <= sources; ++replicas) {
      for (int32_t slices : {2, 4, 8}) {
        SCOPED_TRACE(absl::StrCat(sources, " sources, ", replicas, " replicas of ", slices));
        std::vector<Routing> all;
        for (int32_t slice = 0; slice < slices; ++slice) {
          all.push_back(Routes(MakeCopies(sources), {sources, replicas, slice, slices}));
          ASSERT_NO_FATAL_FAILURE(CheckDelivery(MakeCopies(sources), all.back()));
        }
        size_t most = (replicas * slices + sources - 1) / sources;
        for (const auto& [round, upstreams] : UpstreamsByRound(all)) {
          for (const auto& upstream : upstreams) EXPECT_LE(upstreams.count(upstream), most) << "in round " << round;
        }
      }
    }
  }
}

TEST(RouteTest, TwoSourcesServeTwoReplicasCrosswise) {
  Routing routes = Routes(MakeCopies(2), {2, 2});
  EXPECT_EQ(routes, (Routing{{{0, Source(0), {0, 2}}, {1, Source(1), {1, 3}}},
                             {{0, Source(1), {1, 3}}, {1, Source(0), {0, 2}}}}));
  EXPECT_EQ(ServedBy(Source(1), routes), (std::vector<Serving>{{0, 1, {1, 3}}, {1, 0, {1, 3}}}));
}

TEST(RouteTest, OneSourceServesThreeReplicasInAChain) {
  EXPECT_EQ(Routes(MakeCopies(1), {1, 3}),
            (Routing{{{0, Source(0), {0, 1}}}, {{0, Replica(0), {0, 1}}}, {{0, Replica(1), {0, 1}}}}));
}

TEST(RouteTest, TwoSourcesServeThreeReplicasInTwoCrossingChains) {
  EXPECT_EQ(Routes(MakeCopies(2), {2, 3}), (Routing{{{0, Source(0), {0, 2}}, {1, Replica(1), {1, 3}}},
                                                    {{0, Source(1), {1, 3}}, {1, Replica(2), {0, 2}}},
                                                    {{0, Replica(0), {0, 2}}, {1, Replica(0), {1, 3}}}}));
}

}  // namespace
}  // namespace syncopate::synchronizer
