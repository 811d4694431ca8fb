#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "bench/sync/peer_options.h"

// What both sides of a benchmarked sync do alike.
namespace syncopate::bench {

inline constexpr absl::Duration kWelcomeLimit = absl::Seconds(60);  // to be a member
inline constexpr absl::Duration kGrace = absl::Seconds(2);          // to say farewell

// The transports of `all` that the options ask for.
template <typename Transport>
std::vector<Transport*> Offered(const PeerOptions& options, std::vector<Transport*> all) {
  if (options.transport == "auto") return all;
  std::erase_if(all, [&](const auto* transport) { return transport->name() != options.transport; });
  return all;
}

}  // namespace syncopate::bench
