#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace syncopate::rollouter {

// A PCRE2 regular expression over UTF-8 text, compiled once. A match takes bounded time and memory for every pattern
// and text: kMatchLimit steps, kDepthLimit levels and kHeapLimitKib of heap; at most kMaxTextBytes of the text are
// searched. Immutable, safe to use from any thread.
class Pattern {
 public:
  static constexpr uint32_t kMatchLimit = 1'000'000;
  static constexpr uint32_t kDepthLimit = 10'000;
  static constexpr uint32_t kHeapLimitKib = 16'384;
  static constexpr size_t kMaxTextBytes = 1 << 20;

  // INVALID_ARGUMENT (reason BAD_PATTERN) with the position and the cause of a syntax error.
  static absl::StatusOr<Pattern> Compile(const std::string& pattern);

  // Compiles a pattern into MatchesAll().
  static absl::StatusOr<std::function<bool(absl::string_view)>> CompileMatcher(const std::string& pattern);

  // Whether the pattern has a group, whose contents LastMatch returns.
  bool has_group() const { return groups_ > 0; }
  // Whether the pattern matches `text` from its first byte to its last. False if a limit was exceeded, if `text` is
  // longer than kMaxTextBytes, and if `text` is not valid UTF-8.
  bool MatchesAll(absl::string_view text) const;
  // Searches the last kMaxTextBytes of `text`. Returns group 1 of the last match, or the whole match if the pattern has
  // no group or group 1 took no part. None if nothing matches. A match that exceeds a limit ends the search: later
  // matches are not found.
  std::optional<std::string> LastMatch(absl::string_view text) const;

 private:
  struct Code;
  Pattern(std::shared_ptr<const Code> code, uint32_t groups) : code_(std::move(code)), groups_(groups) {}

  std::shared_ptr<const Code> code_;
  uint32_t groups_ = 0;
};

}  // namespace syncopate::rollouter
