#pragma once

#include "absl/strings/string_view.h"
#include "text/template/value.h"

namespace syncopate::text::chat {

using Filter = Value (*)(const Value& value, const Arguments& arguments, RenderBudget* budget);
using Test = bool (*)(const Value& value, const Arguments& arguments, RenderBudget* budget);

// Of Jinja's filters and tests by name; null for those that are not done here.
Filter FindFilter(absl::string_view name);
Test FindTest(absl::string_view name);

}  // namespace syncopate::text::chat
