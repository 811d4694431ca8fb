#include "tests/support/template_cases.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "text/template/chat_template.h"

namespace syncopate::testing {
namespace {

absl::StatusOr<std::string> Rendered(const std::string& source, const nlohmann::ordered_json& one) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto parsed, text::chat::ChatTemplate::Parse(source));
  SYNCOPATE_ASSIGN_OR_RETURN(auto rendered, parsed.Render(one["context"], one["now"].get<int64_t>()));
  return rendered.text;
}

// Returns both texts from the first difference on.
std::string Difference(const std::string& ours, const std::string& reference) {
  const auto place = std::mismatch(ours.begin(), ours.end(), reference.begin(), reference.end());
  const size_t at = static_cast<size_t>(place.first - ours.begin());
  return absl::StrCat("at byte ", at, " '", absl::CHexEscape(ours.substr(at, 80)), "' instead of '",
                      absl::CHexEscape(reference.substr(at, 80)), "'");
}

}  // namespace

absl::StatusOr<TemplateComparison> CompareTemplates(const std::string& path, const std::string& folder) {
  TemplateComparison comparison;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto one = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!one.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, " holds a line that is no case"));
    std::string source = one.value("source", "");
    const std::string name = one.value("template", source);
    if (one.contains("template")) {
      std::ifstream text(JoinPath(folder, name));
      source = (std::ostringstream() << text.rdbuf()).str();
      if (source.empty()) return absl::NotFoundError(absl::StrCat("no template ", name));
    }
    ++comparison.cases;
    const auto ours = Rendered(source, one);
    if (one.contains("error")) {
      ++comparison.refused;
      if (ours.ok()) {
        comparison.differences.push_back(absl::StrCat(name, ": '", absl::CHexEscape(*ours), "' instead of the error ",
                                                      one["error"].get<std::string>()));
      }
    } else if (!ours.ok()) {
      comparison.differences.push_back(absl::StrCat(name, ": ", std::string(ours.status().message())));
    } else if (*ours != one["text"].get<std::string>()) {
      comparison.differences.push_back(absl::StrCat(name, ": ", Difference(*ours, one["text"].get<std::string>())));
    }
  }
  if (comparison.cases == 0) return absl::NotFoundError(absl::StrCat("no cases in ", path));
  return comparison;
}

}  // namespace syncopate::testing
