#pragma once

#include <array>
#include <string>
#include <vector>

// What other programs for the same work call the keys of a run, for those who come from them.
namespace syncopate::config {

inline constexpr std::array<const char*, 4> kPeers = {"verl", "TRL", "prime-rl", "OpenRLHF"};

struct PeerNames {
  std::string key;                        // here: "rollout.samples"
  std::array<std::string, 4> names = {};  // of each of kPeers, several with blanks between them; "": it has none
};

// In the order of config.proto. Only names that mean the same here, or what the key decides among other things.
const std::vector<PeerNames>& AllPeerNames();

// The key that is called `path` elsewhere; "" if none is. "algorithm.adv_estimator" and "adv_estimator" are the same:
// the name must be the end of the path, from a dot on.
std::string TranslatePeerKey(const std::string& path);

}  // namespace syncopate::config
