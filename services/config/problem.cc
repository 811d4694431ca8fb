#include "services/config/problem.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncopate::config {

std::string ConfigProblem::ToString() const {
  std::string text = absl::StrCat(where, ": ");
  if (!key.empty()) absl::StrAppend(&text, key, " = ", value.empty() ? "\"\"" : value, ": ");
  absl::StrAppend(&text, "expected ", expected);
  if (!nearest.empty()) absl::StrAppend(&text, "; nearest known key: ", nearest);
  if (!translated.empty()) absl::StrAppend(&text, "; here it is called ", translated);
  return text;
}

std::string ToString(const std::vector<ConfigProblem>& problems) {
  return absl::StrJoin(problems, "\n",
                       [](std::string* out, const ConfigProblem& problem) { out->append(problem.ToString()); });
}

}  // namespace syncopate::config
