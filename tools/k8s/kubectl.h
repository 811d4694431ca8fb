#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/k8s/file_tree.h"

namespace syncopate::k8s {

// Runs `kubectl kustomize` on folders of a tree. Thread-safe; has no state.
class Kubectl {
 public:
  struct Options {
    std::string program = "kubectl";  // a path, or a name that is looked up on PATH
    absl::Duration deadline = absl::Minutes(1);
  };

  Kubectl() : Kubectl(Options()) {}
  explicit Kubectl(Options options) : options_(std::move(options)) {}

  // Writes `tree` into a temporary folder, and returns the output of `kubectl kustomize` for its `folder`. Blocks until
  // kubectl ends.
  //   NOT_FOUND (reason NO_KUBECTL)                 it cannot be started: the remedy is in the message
  //   INVALID_ARGUMENT (reason BAD_KUSTOMIZATION)   it refuses the tree: its message
  //   DEADLINE_EXCEEDED (reason KUBECTL_STUCK)      it was killed
  absl::StatusOr<std::string> Kustomize(const FileTree& tree, const std::string& folder) const;

 private:
  const Options options_;
};

// Writes the files of `tree` under `folder`, which is created if necessary. PERMISSION_DENIED (reason NOT_WRITABLE).
absl::Status WriteTree(const FileTree& tree, const std::string& folder);

}  // namespace syncopate::k8s
