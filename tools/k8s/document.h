#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

// Kubernetes manifests as data. A document is a tree of maps, lists and scalars; keys are sorted, as kubectl prints
// them.
namespace syncopate::k8s {

using Document = nlohmann::json;
using Objects = std::vector<Document>;

// The documents of a YAML text, without empty ones. A plain scalar is a number, a boolean or null if it looks like one,
// with kubectl's rules: 0440 is octal, yes and on are text. INVALID_ARGUMENT (reason BAD_YAML) that names `source` and
// the line.
absl::StatusOr<std::vector<Document>> ParseDocuments(const std::string& text, const std::string& source);
// The only document of a text.
absl::StatusOr<Document> ParseDocument(const std::string& text, const std::string& source);

// YAML in block style; ParseDocuments of it gives equal documents. `---` separates documents.
std::string ToYaml(const Document& document);
std::string ToYaml(const std::vector<Document>& documents);

// The text at a path of keys, "" if there is none: Text(object, {"metadata", "name"}).
std::string Text(const Document& document, const std::vector<std::string>& path);

// "Deployment/rollouter", for messages.
std::string GetName(const Document& object);

}  // namespace syncopate::k8s
