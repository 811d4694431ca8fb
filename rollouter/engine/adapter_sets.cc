#include "rollouter/engine/adapter_sets.h"

#include "base/status.h"

namespace syncopate::rollouter {

void AdapterSets::BeginPlan() {
  const Named named{live_, pinned_ == live_ ? kNone : pinned_};
  ++plans_[static_cast<size_t>(named.live)];
  if (named.pinned != kNone) ++plans_[static_cast<size_t>(named.pinned)];
  under_way_.push_back(named);
}

void AdapterSets::EndPlan() {
  SYNCOPATE_CHECK(!under_way_.empty());
  const Named named = under_way_.front();
  under_way_.pop_front();
  --plans_[static_cast<size_t>(named.live)];
  if (named.pinned != kNone) --plans_[static_cast<size_t>(named.pinned)];
  ChooseShadow();
}

int32_t AdapterSets::Pin() {
  if (pins_++ == 0) pinned_ = live_;
  return pinned_;
}

void AdapterSets::Unpin() {
  SYNCOPATE_CHECK(pins_ > 0);
  if (--pins_ > 0) return;
  pinned_ = kNone;
  ChooseShadow();
}

void AdapterSets::Install() {
  SYNCOPATE_CHECK(shadow_ != kNone);
  live_ = shadow_;
  shadow_ = kNone;
  ChooseShadow();
}

bool AdapterSets::IsNamed(int32_t set) const { return set == live_ || set == pinned_ || plans_naming(set) > 0; }

void AdapterSets::ChooseShadow() {
  if (shadow_ != kNone) return;
  for (int32_t set = 0; set < kSets; ++set) {
    if (IsNamed(set)) continue;
    shadow_ = set;
    return;
  }
}

}  // namespace syncopate::rollouter
