#pragma once

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "text/template/syntax.h"

namespace syncopate::text::chat {

// The tree of a template. INVALID_ARGUMENT, reason BAD_TEMPLATE, with the line: what is not well formed, what Jinja has
// and is not done here (tags, filters, tests, methods), and what is nested too deeply.
absl::StatusOr<Node> ParseTemplate(absl::string_view source);

}  // namespace syncopate::text::chat
