#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/k8s/document.h"

namespace syncopate::k8s {

// Which objects a patch is about, as kustomize writes it: kind and name are regular expressions for
// the whole word, labels are "key=value,...". What is empty matches everything. Immutable.
class Selector {
 public:
  // INVALID_ARGUMENT (reason BAD_KUSTOMIZATION) on an unknown key or a broken expression.
  static absl::StatusOr<Selector> Parse(const Document& document, const std::string& source);

  bool Matches(const Document& object) const;

 private:
  std::string kind_;
  std::string name_;
  std::vector<std::pair<std::string, std::string>> labels_;
};

}  // namespace syncopate::k8s
