#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace syncopate::rollouter {

enum class Verdict : uint8_t { kNo, kYes, kUndecided };

// Whether two answers in LaTeX mean the same. kYes and kNo are certain: both were understood and computed exactly, or
// are the same text. Lists and sets are compared as sets, tuples and intervals in order, a percentage with the number
// before its sign and with a hundredth of it. kUndecided: one of them was not understood; a decimal is within 2e-6 of
// the other; a list stands against a tuple.
Verdict CompareMath(absl::string_view expected, absl::string_view given);

// What stands in the last \boxed{} or \fbox{} whose braces are balanced; none if there is none.
std::optional<std::string> LastBoxed(absl::string_view text);

// The number behind the last "####", or else the last number of the text, as "-1234.5"; none if there is none. Commas
// between its digits and a dollar before it do not count, and a minus does only where no word or number is before it.
std::optional<std::string> FinalNumber(absl::string_view text);

// Whether two numbers that FinalNumber gave are equal.
bool SameNumber(const std::string& a, const std::string& b);

}  // namespace syncopate::rollouter
