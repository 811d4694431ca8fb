#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace syncopate::report {

// The page of one run or of several side by side, from what RunHistory::ToJson gives of
// each. The page is one file that loads nothing: style, script and data are inside. No text of a run becomes markup:
// the data are JSON in which no character has a meaning to HTML (EscapedJson), the script puts text into text nodes
// alone, and a content security policy allows that one script and that one style, by their digests, and nothing else.
struct PageOptions {
  std::string made = {};  // when, for people
  bool live = false;      // asks its server for what is new: "new.json" beside it
};
std::string MakePage(const std::vector<nlohmann::json>& runs, const PageOptions& options);

// What MakePage allows a browser to do; a server sends it as a header too.
std::string PagePolicy(bool live);

// JSON that can stand inside a script element, and in a line of JavaScript: <, >, & and U+2028, U+2029 are escaped, and
// bytes that are not UTF-8 replaced.
std::string EscapedJson(const nlohmann::json& value);

}  // namespace syncopate::report
