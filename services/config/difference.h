#pragma once

#include <string>
#include <vector>

#include "syncopate/v1/config.pb.h"

namespace syncopate::config {

// One key that has different values in two configurations, both as YAML.
struct ConfigDifference {
  std::string key;  // "train.learning_rate"
  std::string before;
  std::string after;
  friend bool operator==(const ConfigDifference&, const ConfigDifference&) = default;
};

// The keys with different values, in the order of config.proto.
std::vector<ConfigDifference> Differences(const v1::RunConfig& before, const v1::RunConfig& after);

}  // namespace syncopate::config
