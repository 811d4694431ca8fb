#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "text/template/value.h"

namespace syncopate::text::chat {

// Whether any value has a method of that name that is done here: those of Python's strings and mappings which change
// nothing.
bool IsMethod(absl::string_view name);
// Whether this value has it.
bool HasMethod(const Value& self, absl::string_view name);
// Calls one that it has.
Value CallMethod(const Value& self, absl::string_view name, const Arguments& arguments, RenderBudget* budget);

// The elements as text with `separator` between them.
Value Join(const Value& value, absl::string_view separator, RenderBudget* budget);

}  // namespace syncopate::text::chat
