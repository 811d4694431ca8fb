#pragma once

#include <map>
#include <string>

namespace syncopate::k8s {

// Files by their path in a tree, such as "kustomize/base/trainer.yaml".
using FileTree = std::map<std::string, std::string>;

// The deploy/ folder that this program was built with: kustomize/, and grafana/ that its components draw on.
const FileTree& DeployTree();

}  // namespace syncopate::k8s
