#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "bench/sync/peer_options.h"

// Code that both sides of a benchmarked sync share.
namespace syncopate::bench {

inline constexpr absl::Duration kWelcomeLimit = absl::Seconds(60);  // to become a member
inline constexpr absl::Duration kGrace = absl::Seconds(2);          // to leave

// The transports in `all` that the options ask for.
template <typename Transport>
std::vector<Transport*> Offered(const PeerOptions& options, std::vector<Transport*> all) {
  if (options.transport == "auto") return all;
  std::erase_if(all, [&](const auto* transport) { return transport->name() != options.transport; });
  return all;
}

}  // namespace syncopate::bench
