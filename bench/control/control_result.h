#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/sync/sync_result.h"

namespace syncopate::bench {

// One measured figure, and the value that it should reach.
struct ControlFigure {
  std::string part;  // of ControlParts
  std::string name;
  std::string unit;  // "/s", "ms", ...
  Spread value;      // the median counts
  double at_least = -std::numeric_limits<double>::infinity();
  double at_most = std::numeric_limits<double>::infinity();

  bool has_aim() const;
  bool met() const { return value.median >= at_least && value.median <= at_most; }
};

struct ControlResult {
  std::vector<ControlFigure> figures;
  std::vector<std::string> notes;  // problems that do not make the figures worthless

  bool AllMet() const;
};

nlohmann::json ToJson(const ControlResult& result);
// The result as a table for people.
std::string ToText(const ControlResult& result);

}  // namespace syncopate::bench
