#pragma once

#include <map>
#include <string>

namespace syncopate::k8s {

// Files, keyed by their path in a tree, such as "kustomize/base/trainer.yaml".
using FileTree = std::map<std::string, std::string>;

// The deploy/ folder that this program was built with: kustomize/, and grafana/, which its components use.
const FileTree& DeployTree();

}  // namespace syncopate::k8s
