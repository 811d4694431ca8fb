#include "tools/k8s/selector.h"

#include <regex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace syncopate::k8s {
namespace {

absl::Status BadKustomization(const std::string& source, const std::string& what) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_KUSTOMIZATION", absl::StrCat(source, ": ", what));
}

bool MatchesWhole(const std::string& expression, const std::string& word) {
  return expression.empty() || std::regex_match(word, std::regex(expression));
}

}  // namespace

absl::StatusOr<Selector> Selector::Parse(const Document& document, const std::string& source) {
  if (!document.is_object()) return BadKustomization(source, "a target is a map of kind, name and labelSelector");
  Selector selector;
  for (const auto& [key, value] : document.items()) {
    if (!value.is_string()) return BadKustomization(source, absl::StrCat("target.", key, ": expected text"));
    const std::string text = value.get<std::string>();
    if (key == "labelSelector") {
      for (absl::string_view pair : absl::StrSplit(text, ',')) {
        std::pair<std::string, std::string> label = absl::StrSplit(pair, absl::MaxSplits('=', 1));
        selector.labels_.push_back(std::move(label));
      }
      continue;
    }
    if (key != "kind" && key != "name") {
      return BadKustomization(source, absl::StrCat("target.", key, ": expected kind, name or labelSelector"));
    }
    try {
      std::regex checked(text);
    } catch (const std::regex_error& error) {
      return BadKustomization(source, absl::StrCat("target.", key, " = ", text, ": no regular expression"));
    }
    (key == "kind" ? selector.kind_ : selector.name_) = text;
  }
  return selector;
}

bool Selector::Matches(const Document& object) const {
  for (const auto& [key, value] : labels_) {
    if (Text(object, {"metadata", "labels", key}) != value) return false;
  }
  return MatchesWhole(kind_, Text(object, {"kind"})) && MatchesWhole(name_, Text(object, {"metadata", "name"}));
}

}  // namespace syncopate::k8s
