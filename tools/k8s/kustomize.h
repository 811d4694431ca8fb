#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/k8s/edits.h"
#include "tools/k8s/file_tree.h"

namespace syncopate::k8s {

// How many objects a patch found, by the folder of its kustomization and its place there.
struct PatchUse {
  std::string folder;
  size_t index = 0;
  size_t objects = 0;
};

struct Kustomized {
  Objects objects;                // what others build on first
  std::vector<PatchUse> patches;  // in the order of their use
};

// The objects that the kustomization in `folder` of `tree` makes: what `kubectl kustomize` prints, for the part of its
// language that deploy/kustomize uses: resources, components, configMapGenerator, patches (JSON operations and
// deletion), namespace, images, replacements. Anything else is refused, not left out. Pure.
//
// INVALID_ARGUMENT (reason BAD_KUSTOMIZATION or BAD_YAML) naming the file.
absl::StatusOr<Kustomized> Kustomize(const FileTree& tree, const std::string& folder);

}  // namespace syncopate::k8s
