#pragma once

#include <array>
#include <cstdint>
#include <deque>

#include "model/model_config.h"

namespace syncopate::rollouter {

// Decides what each adapter set of a rollouter serves for. The sets lie at fixed addresses and share the base's memory.
// One set is live: plans compute the policy with it. One is the shadow, which receives the next version. At most one is
// pinned: evaluations that began while it was live are answered by it to their end, and so are those that begin
// meanwhile, so that an evaluation delays no install and is still answered by one version.
//
//   shadow --Install()--> live --the next Install()--> kept while plans or pins name it --> free, or the shadow at once
//
// A plan names the sets that are live or pinned when it is launched. A set that nobody names is free. The shadow is
// chosen among the free sets as soon as there is one, and stays the shadow until it is installed, so that a receiver
// may write to it at any time. While no set is free there is no shadow, and no version can be received.
//
// Pure and deterministic; not thread-safe.
class AdapterSets {
 public:
  static constexpr int32_t kSets = model::kAdapterSets;
  static constexpr int32_t kNone = -1;

  virtual ~AdapterSets() = default;

  int32_t live() const { return live_; }
  int32_t shadow() const { return shadow_; }  // kNone: no set is free
  int32_t pinned() const { return pinned_; }  // kNone: no pin

  // A plan is launched. Plans end in the order of their launches.
  void BeginPlan();
  // The oldest plan has ended: nothing that it has launched reads weights any more. Precondition: there is one.
  void EndPlan();
  // Returns the set that the pin names: the pinned one if there is one, else the live one. Each pin needs an Unpin().
  int32_t Pin();
  void Unpin();
  // The shadow becomes live. Precondition: there is a shadow.
  void Install();

 protected:
  // A rule that tests override to prove that a check detects the fault.
  virtual bool IsNamed(int32_t set) const;
  int64_t plans_naming(int32_t set) const { return plans_[static_cast<size_t>(set)]; }

 private:
  void ChooseShadow();

  int32_t live_ = 0;
  int32_t shadow_ = 1;
  int32_t pinned_ = kNone;
  int64_t pins_ = 0;
  struct Named {
    int32_t live = 0;
    int32_t pinned = kNone;
  };
  std::deque<Named> under_way_;            // by age
  std::array<int64_t, kSets> plans_ = {};  // the number of plans under way that name the set
};

}  // namespace syncopate::rollouter
