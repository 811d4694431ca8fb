#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "model/model_config.h"

namespace syncopate::rollouter {

// Decides which adapter sets lie in the places behind a decoder's weights. A decoder multiplies with the A of a set only
// while it lies in a place: place 0 is the live set's, the other one is for the set that evaluations have pinned. A set
// is copied there when a plan needs it for the first time. Plans and copies must run in the order of the calls, so that
// a copy disturbs no earlier plan.
//
// Pure and deterministic; not thread-safe.
class AdapterPlaces {
 public:
  static constexpr int32_t kPlaces = model::kAdapterPlaces;
  static constexpr int32_t kSets = model::kAdapterSets;
  // A number for each set, which is another one whenever the set's A have changed, or the memory of the places.
  using Contents = std::array<int64_t, kSets>;
  struct Copy {
    int32_t set = 0;
    int32_t place = 0;
  };

  virtual ~AdapterPlaces() = default;

  // A plan whose live set is `live` is launched next. Returns what must be copied before it. `sets`: those that compute its
  // rows, each once or several times; at most one of them is not live.
  std::vector<Copy> BeginPlan(int32_t live, const std::vector<int32_t>& sets, const Contents& contents);
  // The place of a set in a plan with this live set.
  static constexpr int32_t GetPlace(int32_t set, int32_t live) { return set == live ? 0 : 1; }

 protected:
  struct Placed {
    int32_t set = -1;  // below 0: nothing
    int64_t contents = 0;
  };
  // A rule that tests override to prove that a check detects the fault.
  virtual bool Lies(const Placed& placed, int32_t set, int64_t contents) const {
    return placed.set == set && placed.contents == contents;
  }

 private:
  std::array<Placed, kPlaces> placed_ = {};
};

}  // namespace syncopate::rollouter
