#pragma once

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "text/template/syntax.h"

namespace syncopate::text::chat {

// The tree of a template. INVALID_ARGUMENT, reason BAD_TEMPLATE, with the line: if it is not well formed, uses an
// unsupported part of Jinja (tags, filters, tests, methods), or is nested too deeply.
absl::StatusOr<Node> ParseTemplate(absl::string_view source);

}  // namespace syncopate::text::chat
