#include "rollouter/engine/adapter_places.h"

#include "base/status.h"

namespace syncopate::rollouter {

std::vector<AdapterPlaces::Copy> AdapterPlaces::BeginPlan(int32_t live, const std::vector<int32_t>& sets,
                                                          const Contents& contents) {
  std::vector<Copy> copies;
  std::array<int32_t, kPlaces> wanted;  // by place: the set that the plan needs there
  wanted.fill(-1);
  for (const int32_t set : sets) {
    SYNCOPATE_CHECK(set >= 0 && set < kSets);
    const int32_t place = GetPlace(set, live);
    int32_t& has = wanted[static_cast<size_t>(place)];
    SYNCOPATE_CHECK(has < 0 || has == set);
    if (has == set) continue;
    has = set;
    Placed& placed = placed_[static_cast<size_t>(place)];
    const int64_t now = contents[static_cast<size_t>(set)];
    if (Lies(placed, set, now)) continue;
    placed = {set, now};
    copies.push_back({set, place});
  }
  return copies;
}

}  // namespace syncopate::rollouter
