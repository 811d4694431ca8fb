#include "synchronizer/attempts/transport_choice.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace syncopate::synchronizer {
namespace {

constexpr const char* kFastestFirst[] = {"inproc", "grpc"};

bool AllOffer(const std::string& name, const std::vector<std::vector<std::string>>& offers) {
  return absl::c_all_of(offers, [&name](const auto& offer) { return absl::c_linear_search(offer, name); });
}

}  // namespace

absl::StatusOr<TransportChoice> ChooseTransport(const std::string& requested,
                                                const std::vector<std::vector<std::string>>& offers) {
  if (requested != "auto" && AllOffer(requested, offers)) {
    return TransportChoice{requested, "the configuration asks for it"};
  }
  if (requested == "auto") {
    for (const char* name : kFastestFirst) {
      if (AllOffer(name, offers)) return TransportChoice{name, "auto: the fastest that all members offer"};
    }
  }
  return Error(
      absl::StatusCode::kFailedPrecondition, "NO_COMMON_TRANSPORT",
      absl::StrFormat("not all members offer transport %s; set sync.transport to one that they share", requested));
}

}  // namespace syncopate::synchronizer
