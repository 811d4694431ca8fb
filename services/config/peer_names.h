#pragma once

#include <array>
#include <string>
#include <vector>

// The names that other programs for the same work give the keys of a run, for users who know those programs.
namespace syncopate::config {

inline constexpr std::array<const char*, 4> kPeers = {"verl", "TRL", "prime-rl", "OpenRLHF"};

struct PeerNames {
  std::string key;                        // this program's key: "rollout.samples"
  std::array<std::string, 4> names = {};  // the names in each of kPeers, separated by blanks; "": no such key
};

// In the order of config.proto. Contains only names that mean the same here, or whose meaning is part of the key's.
const std::vector<PeerNames>& AllPeerNames();

// The key that another program calls `path`; "" if there is none. "algorithm.adv_estimator" and "adv_estimator" give
// the same key: the name must be the end of the path, from a dot on.
std::string TranslatePeerKey(const std::string& path);

}  // namespace syncopate::config
