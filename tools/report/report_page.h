#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace syncopate::report {

// The page of one run or of several side by side, from the results of RunHistory::ToJson. The page is one file that
// loads nothing: style, script and data are inside. No text of a run becomes markup: the data are JSON in which no
// character has a meaning in HTML (EscapedJson), the script writes text into text nodes only, and a content security
// policy allows nothing but that script and that style, by their digests.
struct PageOptions {
  std::string made = {};  // time of creation, for people
  bool live = false;      // polls its server for updates: "new.json" beside it
};
std::string MakePage(const std::vector<nlohmann::json>& runs, const PageOptions& options);

// The content security policy in a page of MakePage; a server also sends it as a header.
std::string PagePolicy(bool live);

// JSON that is safe inside a script element, and in a line of JavaScript: <, >, & and U+2028, U+2029 are escaped, and
// bytes that are not UTF-8 are replaced.
std::string EscapedJson(const nlohmann::json& value);

}  // namespace syncopate::report
