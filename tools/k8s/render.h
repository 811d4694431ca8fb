#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/k8s/document.h"
#include "tools/k8s/file_tree.h"
#include "tools/k8s/infra.h"
#include "tools/k8s/kubectl.h"

namespace syncopate::k8s {

struct RenderRequest {
  std::string config;         // the text of a run configuration
  std::string config_source;  // its path, for messages
  Infra infra;
  std::string overlay;  // "cpu-demo"
};

struct Rendered {
  Objects objects;
  // deploy/ with an overlay for the request in `folder`: `kubectl kustomize` makes the objects from it.
  FileTree tree;
  std::string folder;
};

// The overlays and components of a tree, sorted.
std::vector<std::string> MakeOverlays(const FileTree& tree);
std::vector<std::string> GetComponents(const FileTree& tree);

// The manifests of a run: an overlay of `tree` with the run configuration and the values of the infra file, built by
// `kubectl`. A device "auto" of the configuration becomes "cuda" or "cpu", depending on what the pods of its role
// request. Blocks while `kubectl` works; returns its errors.
//
// INVALID_ARGUMENT, with a message that lists all problems, one a line. Reason BAD_REQUEST: an unknown overlay or
// component, a value that no object takes, or a worker without its component. Reason BAD_CONFIG: a configuration that
// the daemons would refuse with their containers' arguments, or that does not fit the pods (a requested GPU that is not
// used, a path under no mount, another trust domain than the certificates').
absl::StatusOr<Rendered> Render(const FileTree& tree, const RenderRequest& request, const Kubectl& kubectl);

}  // namespace syncopate::k8s
