#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/k8s/document.h"
#include "tools/k8s/selector.h"

// What a kustomization does to objects that are there: patches, images and replacements, in that part of kustomize's
// language which deploy/kustomize is written in. Objects are changed in place; an error leaves them half changed.
namespace syncopate::k8s {

using Objects = std::vector<Document>;

// A patch: a list of RFC 6902 operations, or `$patch: delete` for the whole object.
struct Patch {
  Selector target;
  Document operations;
  bool deletes = false;
  std::string source;  // for messages
};

// `document` is what the patch holds, parsed. INVALID_ARGUMENT (reason BAD_KUSTOMIZATION) for another kind of patch.
absl::StatusOr<Patch> MakePatch(Selector target, Document document, const std::string& source);
// How many objects it applied to. INVALID_ARGUMENT (reason BAD_KUSTOMIZATION) naming the object in which an operation
// found nothing to act on.
absl::StatusOr<size_t> ApplyPatch(const Patch& patch, Objects* objects);

// {name, newName, newTag, digest}: renames the image in every container, at any depth.
absl::Status SetImage(const Document& entry, const std::string& source, Objects* objects);

// {source: {kind, name, fieldPath}, targets: [{select, fieldPaths, options}]}: copies a part of one object into others.
// A path is keys parted by dots; "[name=x]" is the element of a list whose `name` is x. FAILED_PRECONDITION (reason
// BAD_KUSTOMIZATION) if there is nothing at the source.
absl::Status Replace(const Document& entry, const std::string& source, Objects* objects);

// Puts every object into a namespace, and gives a Namespace itself that name.
void SetNamespace(const std::string& name, Objects* objects);

// Ends the names of the ConfigMaps in `generated` with their digest, and follows them wherever pods name them.
void SuffixNames(const std::vector<std::string>& generated, Objects* objects);

}  // namespace syncopate::k8s
