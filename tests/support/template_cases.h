#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace syncopate::testing {

// Renders every case of a file of JSON lines (scripts/chat_template_reference.py): {"template": file} or {"source":
// text}, context, now, and the text of the reference or its error. Where the reference refuses a case, our
// implementation must refuse it, too. Templates are looked for in `folder`.
struct TemplateComparison {
  int cases = 0, refused = 0;
  std::vector<std::string> differences;  // one line for each difference
};
absl::StatusOr<TemplateComparison> CompareTemplates(const std::string& path, const std::string& folder);

}  // namespace syncopate::testing
