#include "tools/k8s/kustomize.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tools/k8s/bad_kustomization.h"
#include "tools/k8s/config_map.h"

namespace syncopate::k8s {
namespace {

constexpr int kMaxDepth = 16;  // of kustomizations that name each other

const std::set<std::string>& KnownKeys() {
  static const auto* const keys = new std::set<std::string>{
      "apiVersion",     "kind",      "resources", "components",   "configMapGenerator",
      "patches",        "namespace", "images",    "replacements",
      "configurations",  // where custom kinds hold names and images: found here without being told
  };
  return *keys;
}

// What others build on comes first, as kubectl prints it.
int KindRank(const Document& object) {
  static const auto* const ranks = new std::map<std::string, int>([] {
    std::map<std::string, int> made;
    for (const char* kind : {"Namespace", "ServiceAccount", "ConfigMap", "Service", "PersistentVolumeClaim",
                             "Deployment", "StatefulSet", "PodDisruptionBudget"}) {
      made.emplace(kind, static_cast<int>(made.size()));
    }
    return made;
  }());
  auto rank = ranks->find(Text(object, {"kind"}));
  return rank == ranks->end() ? static_cast<int>(ranks->size()) : rank->second;
}

bool ComesBefore(const Document& a, const Document& b) {
  return std::pair(KindRank(a), NameOf(a)) < std::pair(KindRank(b), NameOf(b));
}

class Builder {
 public:
  explicit Builder(const FileTree& tree) : tree_(tree) {}

  // Adds what the kustomization makes to `objects`; a component changes those that are there.
  absl::Status Accumulate(const std::string& folder, int depth, Objects* objects) {
    const std::string source = folder + "/kustomization.yaml";
    if (depth > kMaxDepth) return BadKustomization(source, "kustomizations name each other in a circle");
    SYNCOPATE_ASSIGN_OR_RETURN(Document kustomization, ParseFile(source));
    for (const auto& [key, value] : kustomization.items()) {
      if (KnownKeys().count(key) == 0)
        return BadKustomization(source, key + ": not known to this program; use kubectl kustomize");
    }
    SYNCOPATE_RETURN_IF_ERROR(AddResources(folder, List(kustomization, "resources"), depth, objects));
    for (const Document& entry : List(kustomization, "configMapGenerator")) {
      SYNCOPATE_RETURN_IF_ERROR(Generate(folder, entry, objects));
    }
    for (const Document& entry : List(kustomization, "components")) {
      SYNCOPATE_RETURN_IF_ERROR(Accumulate(JoinTreePath(folder, entry.get<std::string>()), depth + 1, objects));
    }
    return Transform(folder, kustomization, objects);
  }

  absl::StatusOr<Kustomized> Finish(Objects objects) {
    SuffixNames(generated_, &objects);
    std::sort(objects.begin(), objects.end(), ComesBefore);
    return Kustomized{std::move(objects), std::move(patches_)};
  }

 private:
  static Document List(const Document& kustomization, const std::string& key) {
    return kustomization.value(key, Document::array());
  }

  absl::StatusOr<Document> ParseFile(const std::string& path) const {
    auto file = tree_.find(path);
    if (file == tree_.end()) return BadKustomization(path, "there is no such file");
    return ParseDocument(file->second, path);
  }

  absl::Status AddResources(const std::string& folder, const Document& entries, int depth, Objects* objects) {
    for (const Document& entry : entries) {
      const std::string path = JoinTreePath(folder, entry.get<std::string>());
      Objects added;
      auto file = tree_.find(path);
      if (file != tree_.end()) {
        SYNCOPATE_ASSIGN_OR_RETURN(added, ParseDocuments(file->second, path));
      } else {
        SYNCOPATE_RETURN_IF_ERROR(Accumulate(path, depth + 1, &added));
      }
      for (Document& object : added) SYNCOPATE_RETURN_IF_ERROR(Add(path, std::move(object), objects));
    }
    return absl::OkStatus();
  }

  static absl::Status Add(const std::string& source, Document object, Objects* objects) {
    auto same = [&](const Document& other) {
      return NameOf(other) == NameOf(object) && other["apiVersion"] == object["apiVersion"];
    };
    if (std::any_of(objects->begin(), objects->end(), same)) {
      return BadKustomization(source, NameOf(object) + " is there already: a component may be named once");
    }
    objects->push_back(std::move(object));
    return absl::OkStatus();
  }

  absl::Status Generate(const std::string& folder, const Document& entry, Objects* objects) {
    SYNCOPATE_ASSIGN_OR_RETURN(ConfigMapRecipe recipe, ParseConfigMapRecipe(entry, tree_, folder));
    if (recipe.behavior == ConfigMapRecipe::Behavior::kCreate) {
      Document object = {{"apiVersion", "v1"}, {"kind", "ConfigMap"}, {"metadata", {{"name", recipe.name}}}};
      object["data"] = recipe.data;
      if (!recipe.labels.empty()) object["metadata"]["labels"] = recipe.labels;
      if (recipe.suffix) generated_.push_back(recipe.name);
      return Add(folder, std::move(object), objects);
    }
    for (Document& object : *objects) {
      if (NameOf(object) != "ConfigMap/" + recipe.name) continue;
      if (recipe.behavior == ConfigMapRecipe::Behavior::kReplace) object["data"] = Document::object();
      object["data"].update(recipe.data);
      return absl::OkStatus();
    }
    return BadKustomization(folder,
                            absl::StrCat("configMapGenerator: there is no ConfigMap ", recipe.name, " to change"));
  }

  absl::Status Transform(const std::string& folder, const Document& kustomization, Objects* objects) {
    const std::string source = folder + "/kustomization.yaml";
    const Document patches = List(kustomization, "patches");
    for (size_t i = 0; i < patches.size(); ++i) {
      SYNCOPATE_ASSIGN_OR_RETURN(Patch patch, ReadPatch(folder, patches[i]));
      SYNCOPATE_ASSIGN_OR_RETURN(size_t count, ApplyPatch(patch, objects));
      patches_.push_back({folder, i, count});
    }
    if (kustomization.contains("namespace")) SetNamespace(kustomization["namespace"].get<std::string>(), objects);
    for (const Document& entry : List(kustomization, "images")) {
      SYNCOPATE_RETURN_IF_ERROR(SetImage(entry, source, objects));
    }
    for (const Document& entry : List(kustomization, "replacements")) {
      SYNCOPATE_RETURN_IF_ERROR(Replace(entry, source, objects));
    }
    return absl::OkStatus();
  }

  // {target, patch} or {target, path}; `options` only lift checks that this program does not make.
  absl::StatusOr<Patch> ReadPatch(const std::string& folder, const Document& entry) const {
    const std::string source = folder + "/kustomization.yaml";
    const std::string path = JoinTreePath(folder, Text(entry, {"path"}));
    Document document;
    if (entry.contains("path")) {
      SYNCOPATE_ASSIGN_OR_RETURN(document, ParseFile(path));
    } else {
      SYNCOPATE_ASSIGN_OR_RETURN(document, ParseDocument(Text(entry, {"patch"}), source));
    }
    SYNCOPATE_ASSIGN_OR_RETURN(Selector target, Selector::Parse(entry.value("target", Document()), source));
    return MakePatch(std::move(target), std::move(document), entry.contains("path") ? path : source);
  }

  const FileTree& tree_;
  std::vector<std::string> generated_;  // names of ConfigMaps whose digest ends their name
  std::vector<PatchUse> patches_;
};

}  // namespace

absl::StatusOr<Kustomized> Kustomize(const FileTree& tree, const std::string& folder) {
  Builder builder(tree);
  Objects objects;
  try {
    SYNCOPATE_RETURN_IF_ERROR(builder.Accumulate(NormalPath(folder), 0, &objects));
  } catch (const Document::exception& error) {  // a value of another kind than kustomize has there
    return BadKustomization(folder, error.what());
  }
  return builder.Finish(std::move(objects));
}

}  // namespace syncopate::k8s
