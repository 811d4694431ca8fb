#include "bench/control/control_case.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace syncopate::bench {

const std::vector<std::string>& ControlParts() {
  static const auto* parts = new std::vector<std::string>{"unary", "overload", "stream", "ack", "members", "restart"};
  return *parts;
}

absl::Status ControlCase::Validate() const {
  auto bad = [](const std::string& what) { return Error(absl::StatusCode::kInvalidArgument, "BAD_CASE", what); };
  if (parts.empty()) return bad(absl::StrCat("nothing to measure; there are ", absl::StrJoin(ControlParts(), ", ")));
  for (const std::string& part : parts) {
    if (absl::c_linear_search(ControlParts(), part)) continue;
    return bad(absl::StrCat("there is no part '", part, "'; there are ", absl::StrJoin(ControlParts(), ", ")));
  }
  if (std::min({rounds, callers, overload, connections, streams, window, message_bytes, members}) < 1) {
    return bad("all numbers must be at least 1");
  }
  if (round <= absl::ZeroDuration() || steady <= absl::ZeroDuration() || warmup < absl::ZeroDuration()) {
    return bad("all durations must be positive");
  }
  if (tls.cert.empty() != tls.key.empty() || tls.cert.empty() != tls.ca.empty()) {
    return bad("TLS needs a certificate, its key and the authorities, all three");
  }
  if (message_bytes < 1024 || message_bytes > (4 << 20)) return bad("an answer has 1 KiB to 4 MiB");
  return absl::OkStatus();
}

}  // namespace syncopate::bench
