#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/k8s/document.h"

namespace syncopate::k8s {

// The objects that a patch applies to, in kustomize's notation: kind and name are regular expressions that must match
// the whole word, labels are "key=value,...". An empty field matches everything. Immutable.
class Selector {
 public:
  // INVALID_ARGUMENT (reason BAD_KUSTOMIZATION) for an unknown key or an invalid expression.
  static absl::StatusOr<Selector> Parse(const Document& document, const std::string& source);

  bool Matches(const Document& object) const;

 private:
  std::string kind_;
  std::string name_;
  std::vector<std::pair<std::string, std::string>> labels_;
};

}  // namespace syncopate::k8s
