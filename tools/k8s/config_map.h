#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "tools/k8s/document.h"
#include "tools/k8s/file_tree.h"

namespace syncopate::k8s {

// One entry of a kustomization's configMapGenerator.
struct ConfigMapRecipe {
  enum class Behavior { kCreate, kMerge, kReplace };
  std::string name;
  Behavior behavior = Behavior::kCreate;
  Document data = Document::object();    // key -> text
  Document labels = Document::object();  // of the ConfigMap
  bool suffix = true;                    // a digest of what it holds ends its name, so that pods notice a change
};

// Reads an entry; its files are those of `tree`, by paths relative to `folder`. INVALID_ARGUMENT (reason
// BAD_KUSTOMIZATION) on a file that is not there and on keys that this program does not know.
absl::StatusOr<ConfigMapRecipe> ParseConfigMapRecipe(const Document& entry, const FileTree& tree,
                                                     const std::string& folder);

// Ten letters that kustomize appends to the name of a generated ConfigMap.
std::string NameSuffix(const Document& config_map);

}  // namespace syncopate::k8s
