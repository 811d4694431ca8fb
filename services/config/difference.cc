#include "services/config/difference.h"

#include "services/config/field_value.h"
#include "services/config/schema.h"

namespace syncopate::config {

std::vector<ConfigDifference> Differences(const v1::RunConfig& before, const v1::RunConfig& after) {
  std::vector<ConfigDifference> differences;
  const ConfigSchema schema;
  for (const ConfigKey& key : schema.keys()) {
    std::string old_value = GetValue(key, before), new_value = GetValue(key, after);
    if (old_value != new_value) differences.push_back({key.path, std::move(old_value), std::move(new_value)});
  }
  return differences;
}

}  // namespace syncopate::config
