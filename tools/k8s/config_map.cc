#include "tools/k8s/config_map.h"

#include <openssl/sha.h>

#include <array>
#include <filesystem>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "tools/k8s/bad_kustomization.h"

namespace syncopate::k8s {
namespace {

absl::Status BadGenerator(const std::string& folder, const std::string& what) {
  return BadKustomization(absl::StrCat(folder, "/kustomization.yaml"), absl::StrCat("configMapGenerator: ", what));
}

absl::StatusOr<std::string> FileOf(const FileTree& tree, const std::string& folder, const std::string& path) {
  auto file = tree.find(JoinTreePath(folder, path));
  if (file == tree.end()) return BadGenerator(folder, absl::StrCat("there is no file ", path));
  return file->second;
}

// "name=path" or "path".
absl::Status AddFile(const std::string& word, const FileTree& tree, const std::string& folder, Document* data) {
  std::pair<std::string, std::string> pair = absl::StrSplit(word, absl::MaxSplits('=', 1));
  const std::string& path = pair.second.empty() ? pair.first : pair.second;
  const std::string key = pair.second.empty() ? std::filesystem::path(path).filename().string() : pair.first;
  SYNCOPATE_ASSIGN_OR_RETURN((*data)[key], FileOf(tree, folder, path));
  return absl::OkStatus();
}

// "KEY=VALUE" of a literal or of a line of an environment file.
absl::Status AddPair(absl::string_view word, const std::string& folder, Document* data) {
  const size_t equals = word.find('=');
  if (equals == absl::string_view::npos) return BadGenerator(folder, absl::StrCat("expected KEY=VALUE, got ", word));
  (*data)[std::string(word.substr(0, equals))] = std::string(word.substr(equals + 1));
  return absl::OkStatus();
}

absl::Status AddEnvironment(const std::string& text, const std::string& folder, Document* data) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripLeadingAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    SYNCOPATE_RETURN_IF_ERROR(AddPair(line, folder, data));
  }
  return absl::OkStatus();
}

absl::Status AddSources(const std::string& key, const Document& words, const FileTree& tree, const std::string& folder,
                        Document* data) {
  for (const Document& word : words) {
    if (!word.is_string()) return BadGenerator(folder, absl::StrCat(key, ": expected texts"));
    const std::string text = word.get<std::string>();
    if (key == "files") SYNCOPATE_RETURN_IF_ERROR(AddFile(text, tree, folder, data));
    if (key == "literals") SYNCOPATE_RETURN_IF_ERROR(AddPair(text, folder, data));
    if (key == "envs") {
      SYNCOPATE_ASSIGN_OR_RETURN(std::string environment, FileOf(tree, folder, text));
      SYNCOPATE_RETURN_IF_ERROR(AddEnvironment(environment, folder, data));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ConfigMapRecipe> ParseConfigMapRecipe(const Document& entry, const FileTree& tree,
                                                     const std::string& folder) {
  ConfigMapRecipe recipe;
  for (const auto& [key, value] : entry.items()) {
    if (key == "name" && value.is_string()) {
      recipe.name = value.get<std::string>();
    } else if (key == "behavior" && (value == "create" || value == "merge" || value == "replace")) {
      recipe.behavior = value == "merge"     ? ConfigMapRecipe::Behavior::kMerge
                        : value == "replace" ? ConfigMapRecipe::Behavior::kReplace
                                             : ConfigMapRecipe::Behavior::kCreate;
    } else if ((key == "files" || key == "literals" || key == "envs") && value.is_array()) {
      SYNCOPATE_RETURN_IF_ERROR(AddSources(key, value, tree, folder, &recipe.data));
    } else if (key == "options" && value.is_object()) {
      recipe.suffix = !value.value("disableNameSuffixHash", false);
      recipe.labels = value.value("labels", Document::object());
    } else {
      return BadGenerator(folder,
                          absl::StrCat(key, " = ", value.dump(), ": not known to this program; use kubectl kustomize"));
    }
  }
  if (recipe.name.empty()) return BadGenerator(folder, "an entry has no name");
  return recipe;
}

std::string NameSuffix(const Document& config_map) {
  // kustomize looks for the name where it is not, and so hashes none.
  const Document hashed = {{"kind", "ConfigMap"}, {"name", ""}, {"data", config_map.value("data", Document::object())}};
  // As Go writes JSON: safe inside HTML.
  const std::string json = absl::StrReplaceAll(
      hashed.dump(),
      {{"<", "\\u003c"}, {">", "\\u003e"}, {"&", "\\u0026"}, {"\u2028", "\\u2028"}, {"\u2029", "\\u2029"}});
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const unsigned char*>(json.data()), json.size(), digest.data());
  const std::string hex =
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
  // Letters with which no word can be spelt.
  return absl::StrReplaceAll(hex.substr(0, 10), {{"0", "g"}, {"1", "h"}, {"3", "k"}, {"a", "m"}, {"e", "t"}});
}

}  // namespace syncopate::k8s
