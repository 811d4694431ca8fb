#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "text/template/value.h"

namespace syncopate::text::chat {

using Filter = Value (*)(const Value& value, const Arguments& arguments, RenderBudget* budget);
using Test = bool (*)(const Value& value, const Arguments& arguments, RenderBudget* budget);

// Find a filter or a test of Jinja by name; null if it is not supported.
Filter FindFilter(absl::string_view name);
Test FindTest(absl::string_view name);

// Whether some value has a supported method of that name: methods of Python's strings and mappings that do not change
// them.
bool IsMethod(absl::string_view name);
// Whether `self` has that method.
bool HasMethod(const Value& self, absl::string_view name);
// Calls a method of `self`, for which HasMethod must be true.
Value CallMethod(const Value& self, absl::string_view name, const Arguments& arguments, RenderBudget* budget);

// The elements as text with `separator` between them.
Value Join(const Value& value, absl::string_view separator, RenderBudget* budget);

}  // namespace syncopate::text::chat
