#include "services/config/duration.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::config {

absl::StatusOr<absl::Duration> ParseDuration(const std::string& text) {
  absl::Duration duration;
  // absl also accepts a bare "0" and "inf", which are no durations here; the comparison below refuses both.
  if (!absl::ParseDuration(text, &duration) || duration <= absl::ZeroDuration() ||
      duration == absl::InfiniteDuration()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_DURATION",
                 absl::StrCat("\"", text, "\" is not a duration above zero with a unit, such as 250ms, 10s or 5m"));
  }
  return duration;
}

absl::Duration CheckedDuration(const std::string& text, absl::Duration if_empty) {
  if (text.empty()) return if_empty;
  auto duration = ParseDuration(text);
  SYNCOPATE_CHECK(duration.ok());
  return *duration;
}

}  // namespace syncopate::config
