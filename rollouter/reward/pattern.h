#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace syncopate::rollouter {

// A regular expression of PCRE2 on UTF-8 text, compiled once. Whatever it is and is matched with, a match takes bounded
// time and memory: kMatchLimit steps, kDepthLimit levels, kHeapLimitKib, and the first kMaxTextBytes of the text's end.
// Immutable, safe to use from any thread.
class Pattern {
 public:
  static constexpr uint32_t kMatchLimit = 1'000'000;
  static constexpr uint32_t kDepthLimit = 10'000;
  static constexpr uint32_t kHeapLimitKib = 16'384;
  static constexpr size_t kMaxTextBytes = 1 << 20;

  // INVALID_ARGUMENT (reason BAD_PATTERN) saying where and why it is none.
  static absl::StatusOr<Pattern> Compile(const std::string& pattern);

  // Whether it has a group whose contents LastMatch gives.
  bool has_group() const { return groups_ > 0; }
  // Whether it matches the text from its first byte to its last. No if the limits do not suffice to tell, and for text
  // that is no UTF-8.
  bool MatchesAll(absl::string_view text) const;
  // What the last of its matches gave: group 1, or all of it if it has no group or group 1 took no part. None if there
  // is no match; a match beyond the limits is none, and none is looked for behind it.
  std::optional<std::string> LastMatch(absl::string_view text) const;

 private:
  struct Code;
  Pattern(std::shared_ptr<const Code> code, uint32_t groups) : code_(std::move(code)), groups_(groups) {}

  std::shared_ptr<const Code> code_;
  uint32_t groups_ = 0;
};

}  // namespace syncopate::rollouter
