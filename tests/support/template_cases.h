#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace syncopate::testing {

// Renders every case of a file of JSON lines (scripts/chat_template_reference.py): {"template": file} or {"source":
// text}, context, now, and the text of the reference or its error. Where the reference refuses, ours must too.
// Templates are looked for in `folder`.
struct TemplateComparison {
  int cases = 0, refused = 0;
  std::vector<std::string> differences;  // what differs, a line each
};
absl::StatusOr<TemplateComparison> CompareTemplates(const std::string& path, const std::string& folder);

}  // namespace syncopate::testing
