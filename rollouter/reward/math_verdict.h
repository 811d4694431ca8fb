#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace syncopate::rollouter {

enum class Verdict : uint8_t { kNo, kYes, kUndecided };

// Whether two answers in LaTeX mean the same. kYes and kNo are certain: both answers were parsed and computed exactly,
// or their normalised texts are equal. Lists and sets are compared as sets; tuples and intervals are compared in order.
// A percentage equals both the number before its sign and a hundredth of it. kUndecided: an answer was not parsed; a
// decimal is within 2e-6 of the other number; or a list is compared with a tuple.
Verdict CompareMath(absl::string_view expected, absl::string_view given);

// Returns the contents of the last \boxed{} or \fbox{} whose braces are balanced; none if the text has none.
std::optional<std::string> LastBoxed(absl::string_view text);

// Returns the number behind the last "####", or else the last number of the text, as "-1234.5"; none if there is none.
// Commas between digits and a dollar sign before them are ignored. A minus counts only if no word or number stands
// before it.
std::optional<std::string> FinalNumber(absl::string_view text);

// Whether two numbers that FinalNumber returned are equal.
bool SameNumber(const std::string& a, const std::string& b);

}  // namespace syncopate::rollouter
