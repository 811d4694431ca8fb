#pragma once

#include <string>
#include <vector>

// Which file of the tree may include what; docs/architecture.md draws the arrows.
namespace syncopate::testing {

// The paths that a source text includes, as written, in order.
std::vector<std::string> IncludesOf(const std::string& text);

// One sentence for each include of the file at `path` (relative to the tree's root, with slashes) that breaks a rule.
std::vector<std::string> Breaches(const std::string& path, const std::vector<std::string>& includes);

}  // namespace syncopate::testing
