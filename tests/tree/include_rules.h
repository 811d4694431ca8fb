#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

// The rules about which file of the tree may include which; docs/architecture.md draws the arrows.
namespace syncopate::testing {

// The paths that a source text includes, as written, in order.
std::vector<std::string> ListIncludes(const std::string& text);

// One sentence for each include of the file at `path` (relative to the tree's root, with slashes) that breaks a rule.
std::vector<std::string> Breaches(const std::string& path, const std::vector<std::string>& includes);

// The folders that the files of each folder include, without the folder itself.
using FolderIncludes = std::map<std::string, std::set<std::string>>;

// The folders that include each other in a circle, and those that lead to one; sorted.
std::vector<std::string> InCircles(FolderIncludes includes);

}  // namespace syncopate::testing
