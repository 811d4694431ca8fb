#include "base/console/words.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace syncopate {

std::string Thousands(int64_t value) {
  std::string digits = absl::StrCat(value < 0 ? -static_cast<uint64_t>(value) : static_cast<uint64_t>(value));
  for (size_t end = digits.size(); end > 3; end -= 3) digits.insert(end - 3, 1, ',');
  return absl::StrCat(value < 0 ? "-" : "", digits);
}

std::string Percent(double share) { return absl::StrFormat("%.0f%%", 100 * share); }

std::string Milliseconds(double seconds) {
  double ms = 1e3 * seconds;
  if (ms >= 100) return absl::StrFormat("%.0f ms", ms);
  return ms >= 1 ? absl::StrFormat("%.1f ms", ms) : absl::StrFormat("%.2f ms", ms);
}

std::string Clocked(double seconds) {
  auto whole = static_cast<int64_t>(std::floor(seconds));
  if (whole >= 3600) return absl::StrFormat("%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
  return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
}

double Share(double part, double whole) { return whole > 0 ? part / whole : 0; }

}  // namespace syncopate
