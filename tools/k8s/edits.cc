#include "tools/k8s/edits.h"

#include <functional>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "tools/k8s/bad_kustomization.h"
#include "tools/k8s/config_map.h"

namespace syncopate::k8s {
namespace {

// Every map inside `document`, itself included.
void ForEachMap(Document* document, const std::function<void(Document*)>& visit) {
  if (document->is_object()) visit(document);
  if (!document->is_structured()) return;
  for (Document& part : *document) ForEachMap(&part, visit);
}

// `image` without tag and digest. A colon before the last slash is a port.
std::string RepositoryOf(const std::string& image) {
  const std::string name = image.substr(0, image.find('@'));
  const size_t colon = name.rfind(':'), slash = name.rfind('/');
  const bool tagged = colon != std::string::npos && (slash == std::string::npos || colon > slash);
  return tagged ? name.substr(0, colon) : name;
}

std::string NewImage(const std::string& image, const Document& entry) {
  const std::string repository = RepositoryOf(image);
  const std::string name = entry.value("newName", repository), digest = entry.value("digest", "");
  if (!digest.empty()) return absl::StrCat(name, "@", digest);
  const std::string tag = entry.value("newTag", "");
  return tag.empty() ? name + image.substr(repository.size()) : absl::StrCat(name, ":", tag);
}

// One step of a path: into a map, or to the list element whose `name` is given. With `create` a missing key is made.
Document* Step(Document* at, const std::string& word, bool create) {
  const bool is_element = absl::StartsWith(word, "[") && absl::EndsWith(word, "]");
  if (!is_element) {
    if (create && at->is_null()) *at = Document::object();
    if (!at->is_object() || (!create && !at->contains(word))) return nullptr;
    return &(*at)[word];
  }
  std::pair<std::string, std::string> wanted = absl::StrSplit(word.substr(1, word.size() - 2), '=');
  if (!at->is_array()) return nullptr;
  for (Document& element : *at) {
    if (Text(element, {wanted.first}) == wanted.second) return &element;
  }
  return nullptr;
}

Document* At(Document* object, const std::string& path, bool create) {
  for (absl::string_view word : absl::StrSplit(path, '.')) {
    object = Step(object, std::string(word), create);
    if (object == nullptr) return nullptr;
  }
  return object;
}

absl::StatusOr<Document> SourceOf(const Document& entry, const std::string& source, Objects* objects) {
  Document select = entry.value("source", Document::object());
  const std::string path = select.value("fieldPath", "metadata.name");
  select.erase("fieldPath");
  SYNCOPATE_ASSIGN_OR_RETURN(Selector selector, Selector::Parse(select, source));
  for (Document& object : *objects) {
    if (!selector.Matches(object)) continue;
    const Document* found = At(&object, path, /*create=*/false);
    if (found != nullptr) return *found;
  }
  return BadKustomization(source, absl::StrCat("there is no object ", select.dump(), " to copy ", path,
                                               " from: a component that it builds on is missing"));
}

absl::Status FillTarget(const Document& target, const Document& value, const std::string& source, Objects* objects) {
  SYNCOPATE_ASSIGN_OR_RETURN(Selector selector, Selector::Parse(target.value("select", Document::object()), source));
  const bool create = target.value("options", Document::object()).value("create", false);
  for (Document& object : *objects) {
    if (!selector.Matches(object)) continue;
    for (const Document& path : target.value("fieldPaths", Document::array())) {
      Document* place = At(&object, path.get<std::string>(), create);
      if (place == nullptr)
        return BadKustomization(source, absl::StrCat(NameOf(object), " has no ", path.get<std::string>()));
      *place = value;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Patch> MakePatch(Selector target, Document document, const std::string& source) {
  const bool deletes = document.is_object() && document.value("$patch", "") == "delete";
  if (!deletes && !document.is_array()) {
    return BadKustomization(
        source, "a patch is a list of JSON operations or `$patch: delete`; use kubectl kustomize for others");
  }
  return Patch{std::move(target), std::move(document), deletes, source};
}

absl::StatusOr<size_t> ApplyPatch(const Patch& patch, Objects* objects) {
  size_t count = 0;
  for (auto object = objects->begin(); object != objects->end();) {
    if (!patch.target.Matches(*object)) {
      ++object;
      continue;
    }
    ++count;
    if (patch.deletes) {
      object = objects->erase(object);
      continue;
    }
    try {
      object->patch_inplace(patch.operations);
    } catch (const Document::exception& error) {
      return BadKustomization(patch.source, absl::StrCat(NameOf(*object), ": ", error.what()));
    }
    ++object;
  }
  return count;
}

absl::Status SetImage(const Document& entry, const std::string& source, Objects* objects) {
  const std::string name = entry.is_object() ? entry.value("name", "") : "";
  if (name.empty()) return BadKustomization(source, "images: an entry has no name");
  for (Document& object : *objects) {
    ForEachMap(&object, [&](Document* map) {
      for (const char* key : {"containers", "initContainers"}) {
        if (!map->contains(key) || !(*map)[key].is_array()) continue;
        for (Document& container : (*map)[key]) {
          const std::string image = Text(container, {"image"});
          if (RepositoryOf(image) == name) container["image"] = NewImage(image, entry);
        }
      }
    });
  }
  return absl::OkStatus();
}

absl::Status Replace(const Document& entry, const std::string& source, Objects* objects) {
  SYNCOPATE_ASSIGN_OR_RETURN(Document value, SourceOf(entry, source, objects));
  for (const Document& target : entry.value("targets", Document::array())) {
    SYNCOPATE_RETURN_IF_ERROR(FillTarget(target, value, source, objects));
  }
  return absl::OkStatus();
}

void SetNamespace(const std::string& name, Objects* objects) {
  for (Document& object : *objects) {
    const bool is_namespace = Text(object, {"kind"}) == "Namespace";
    object["metadata"][is_namespace ? "name" : "namespace"] = name;
  }
}

void SuffixNames(const std::vector<std::string>& generated, Objects* objects) {
  std::map<std::string, std::string> renamed;
  for (Document& object : *objects) {
    if (Text(object, {"kind"}) != "ConfigMap") continue;
    const std::string name = Text(object, {"metadata", "name"});
    for (const std::string& candidate : generated) {
      if (candidate == name) renamed[name] = absl::StrCat(name, "-", NameSuffix(object));
    }
    if (renamed.count(name) > 0) object["metadata"]["name"] = renamed[name];
  }
  for (Document& object : *objects) {
    ForEachMap(&object, [&](Document* map) {
      for (const char* key : {"configMap", "configMapRef", "configMapKeyRef"}) {
        if (!map->contains(key)) continue;
        auto found = renamed.find(Text(*map, {key, "name"}));
        if (found != renamed.end()) (*map)[key]["name"] = found->second;
      }
    });
  }
}

}  // namespace syncopate::k8s
