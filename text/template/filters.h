#pragma once

#include "absl/strings/string_view.h"
#include "text/template/value.h"

namespace syncopate::text::chat {

using Filter = Value (*)(const Value& value, const Arguments& arguments, RenderBudget* budget);
using Test = bool (*)(const Value& value, const Arguments& arguments, RenderBudget* budget);

// Find a filter or a test of Jinja by name; null if it is not supported.
Filter FindFilter(absl::string_view name);
Test FindTest(absl::string_view name);

}  // namespace syncopate::text::chat
