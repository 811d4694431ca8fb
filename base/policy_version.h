#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace syncopate {

// Names one state of the policy: `step` counts optimizer steps, `epoch` rises by one each time a trainer starts or
// restores. Ordered by epoch first. {0, 0} is "none": real epochs start at 1.
struct PolicyVersion {
  int64_t epoch = 0;
  int64_t step = 0;

  bool IsNone() const { return epoch == 0; }
  std::string ToString() const { return absl::StrCat("e", epoch, "-s", step); }
  friend auto operator<=>(const PolicyVersion&, const PolicyVersion&) = default;
};

}  // namespace syncopate
