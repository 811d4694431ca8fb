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
  // deploy/ with the overlay that stands for the request in `folder`: `kubectl kustomize` makes the objects of it.
  FileTree tree;
  std::string folder;
};

// The overlays and components of a tree, sorted.
std::vector<std::string> OverlaysOf(const FileTree& tree);
std::vector<std::string> ComponentsOf(const FileTree& tree);

// The manifests of a run: an overlay of `tree` with the run configuration and what the infra file says, as `kubectl`
// makes them. A device "auto" of the configuration becomes "cuda" or "cpu", by what the pods of its role ask for.
// Blocks while it works; its errors are returned.
//
// INVALID_ARGUMENT, the message being every problem, a line each, of what cannot be honoured: reason BAD_REQUEST for an
// unknown overlay or component, for a value that no object takes and for a worker without its component, BAD_CONFIG for
// a configuration that the daemons would refuse with the arguments that their containers have, or that does not fit the
// pods (a GPU that is asked for and not used, a path under no mount, a trust domain that the certificates are not of).
absl::StatusOr<Rendered> Render(const FileTree& tree, const RenderRequest& request, const Kubectl& kubectl);

}  // namespace syncopate::k8s
