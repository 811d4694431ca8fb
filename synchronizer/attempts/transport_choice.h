#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncopate::synchronizer {

struct TransportChoice {
  std::string name;
  std::string reason;  // why this one, for people
};

// The transport of a sync: `requested`, or for "auto" the fastest one that every member can use. `offers` holds each
// member's list of transports. FAILED_PRECONDITION reason NO_COMMON_TRANSPORT if there is none.
absl::StatusOr<TransportChoice> ChooseTransport(const std::string& requested,
                                                const std::vector<std::vector<std::string>>& offers);

}  // namespace syncopate::synchronizer
