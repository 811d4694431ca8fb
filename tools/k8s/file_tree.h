#pragma once

#include <map>
#include <string>

namespace syncopate::k8s {

// Files by their path in a tree, such as "kustomize/base/trainer.yaml".
using FileTree = std::map<std::string, std::string>;

// The deploy/ folder that this program was built with: kustomize/, and grafana/ that its components draw on.
const FileTree& DeployTree();

// "kustomize/overlays/x/../../base" -> "kustomize/base". Never leaves the tree: further ".." stay.
std::string NormalPath(const std::string& path);
std::string JoinTreePath(const std::string& folder, const std::string& path);

}  // namespace syncopate::k8s
