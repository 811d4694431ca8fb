#include "tools/k8s/render.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "services/config/rules.h"
#include "services/config/run_config.h"
#include "services/config/schema.h"
#include "tools/k8s/fit.h"
#include "tools/k8s/selector.h"

namespace syncopate::k8s {
namespace {

constexpr char kRunFolder[] = "kustomize/run";
constexpr char kSettingsFolder[] = "kustomize/run/settings";
constexpr char kBareFolder[] = "kustomize/bare";
constexpr int kSettingsRank = 4;

std::vector<std::string> FoldersUnder(const FileTree& tree, const std::string& root) {
  std::set<std::string> names;
  for (const auto& [path, text] : tree) {
    const std::vector<std::string> words = absl::StrSplit(path, '/');
    if (words.size() == 4 && words[0] == "kustomize" && words[1] == root && words[3] == "kustomization.yaml") {
      names.insert(words[2]);
    }
  }
  return {names.begin(), names.end()};
}

// The order in which components are applied: a component that changes the kind of an object comes after those that
// change its pods, and one that refers to an object by its kind comes when the kind is final. Pods that take other
// arguments than daemons come after the components that patch all pods. The infra file's values are applied while pods
// and claims still have their plain form.
int ComponentRank(const std::string& component) {
  static const auto* const ranks = new std::map<std::string, int>{{"jobs", 1},
                                                                  {"ranks", 2},
                                                                  {"job-ranks", 2},
                                                                  {"replica-ranks", 2},
                                                                  {"workers", 2},
                                                                  {"gateway", 2},
                                                                  {"workers-mtls", 3},
                                                                  {"workers-mtls-cert-manager", 3},
                                                                  {"settings", kSettingsRank},
                                                                  {"jobset", 5},
                                                                  {"lws", 5},
                                                                  {"keda", 6},
                                                                  {"workers-keda", 6},
                                                                  {"kueue", 7}};
  auto rank = ranks->find(component);
  return rank == ranks->end() ? 0 : rank->second;
}

// The component `settings`, if there is one, is in the run's own folder.
std::vector<std::string> ComponentPaths(std::vector<std::string> components, bool settings) {
  if (settings) components.push_back("settings");
  std::stable_sort(components.begin(), components.end(),
                   [](const std::string& a, const std::string& b) { return ComponentRank(a) < ComponentRank(b); });
  std::vector<std::string> paths;
  for (const std::string& name : components) paths.push_back(name == "settings" ? name : "../components/" + name);
  return paths;
}

Document ImageEntry(const std::string& name, const std::string& image) {
  const size_t at = image.find('@'), colon = image.rfind(':');
  Document entry = {{"name", name}, {"newName", image.substr(0, std::min(at, colon))}};
  entry[at == std::string::npos ? "newTag" : "digest"] = image.substr(std::min(at, colon) + 1);
  return entry;
}

Document RunKustomization(const RenderRequest& request, const std::vector<std::string>& components, bool settings) {
  const Infra& infra = request.infra;
  Document run = {{"apiVersion", "kustomize.config.k8s.io/v1beta1"}, {"kind", "Kustomization"}};
  run["resources"] = Document::array({"../overlays/" + request.overlay});
  run["components"] = ComponentPaths(components, settings);
  run["namespace"] = infra.Name("namespace").empty() ? "syncopate" : infra.Name("namespace");
  Document maps = Document::array();
  maps.push_back({{"name", "syncopate-config"}, {"behavior", "replace"}, {"files", {"run.yaml"}}});
  run["configMapGenerator"] = std::move(maps);
  Document images = Document::array();
  if (!infra.Name("image").empty()) images.push_back(ImageEntry("syncopate", infra.Name("image")));
  if (!infra.worker_image().empty()) images.push_back(ImageEntry("syncopate-worker", infra.worker_image()));
  if (!images.empty()) run["images"] = images;
  return run;
}

// A component with the infra file's values.
Document SettingsKustomization(const Infra& infra, const std::vector<Infra::Wish>& wishes) {
  Document settings = {{"apiVersion", "kustomize.config.k8s.io/v1alpha1"}, {"kind", "Component"}};
  Document literals = Document::array(), patches = Document::array();
  const Document nccl = infra.nccl();
  for (const auto& [key, value] : nccl.items()) literals.push_back(key + "=" + value.get<std::string>());
  if (!literals.empty()) {
    settings["configMapGenerator"] =
        Document::array({{{"name", "syncopate-nccl"}, {"behavior", "merge"}, {"literals", literals}}});
  }
  for (const Infra::Wish& wish : wishes) {
    for (const Document& patch : wish.patches) patches.push_back(patch);
  }
  if (!patches.empty()) settings["patches"] = patches;
  return settings;
}

config::ConfigProblem UnknownName(const std::string& where, const std::string& key, const std::string& name,
                                  const std::vector<std::string>& known) {
  auto nearer = [&](const std::string& a, const std::string& b) {
    return config::EditDistance(name, a) < config::EditDistance(name, b);
  };
  auto nearest = std::min_element(known.begin(), known.end(), nearer);
  return {where, key, name, absl::StrCat("a known ", key == "components" ? "component" : key),
          nearest == known.end() ? "" : *nearest};
}

// The names that an overlay lists under `components`; empty if the overlay does not exist.
std::set<std::string> ComponentsOfOverlay(const FileTree& tree, const std::string& overlay) {
  std::set<std::string> names;
  auto file = tree.find(absl::StrCat("kustomize/overlays/", overlay, "/kustomization.yaml"));
  if (file == tree.end()) return names;
  auto kustomization = ParseDocument(file->second, file->first);
  if (!kustomization.ok()) return names;  // kubectl reports what is wrong with it
  for (const Document& entry : kustomization->value("components", Document::array())) {
    if (entry.is_string()) names.insert(std::filesystem::path(entry.get<std::string>()).filename().string());
  }
  return names;
}

std::vector<config::ConfigProblem> CheckNames(const FileTree& tree, const RenderRequest& request) {
  std::vector<config::ConfigProblem> problems;
  const std::vector<std::string> overlays = MakeOverlays(tree), components = GetComponents(tree);
  if (std::find(overlays.begin(), overlays.end(), request.overlay) == overlays.end()) {
    problems.push_back(UnknownName("command line", "overlay", request.overlay, overlays));
  }
  const std::set<std::string> there = ComponentsOfOverlay(tree, request.overlay);
  for (const std::string& name : request.infra.components()) {
    if (there.count(name) > 0) {
      problems.push_back({request.infra.source(), "components", name,
                          absl::StrCat("to be left out: overlay ", request.overlay, " has it already"), ""});
    }
    if (std::find(components.begin(), components.end(), name) != components.end()) continue;
    problems.push_back(UnknownName(request.infra.source(), "components", name, components));
  }
  return problems;
}

// What the configuration needs of the pods; CheckFit reports errors in it.
struct Needs {
  int64_t trainer_ranks = 1;
  int64_t rollouter_ranks = 1;
  std::string worker_command;
  bool plays = false;  // samples are played in an environment
  std::string trust_domain;
};

Needs ReadNeeds(const RenderRequest& request) {
  const v1::RunConfig config = config::ParseRunConfig(request.config, request.config_source, {}).config;
  return {.trainer_ranks = config.trainer().world(),
          .rollouter_ranks = config.rollout().tensor_parallel(),
          .worker_command = config.environment().command(),
          .plays = config::Plays(config),
          .trust_domain = config.security().trust_domain()};
}

// The components of the overlay and of the request.
std::set<std::string> AllComponents(const FileTree& tree, const RenderRequest& request) {
  std::set<std::string> all = ComponentsOfOverlay(tree, request.overlay);
  const std::vector<std::string> asked = request.infra.components();
  all.insert(asked.begin(), asked.end());
  return all;
}

// The components of the request, and those that the configuration or other components need.
std::vector<std::string> ComponentsOfRun(const FileTree& tree, const RenderRequest& request, const Needs& needs) {
  std::vector<std::string> components = request.infra.components();
  std::set<std::string> all = AllComponents(tree, request);
  auto add = [&](const std::string& name) {
    if (all.insert(name).second) components.push_back(name);
  };
  if (needs.trainer_ranks > 1) add(all.count("jobs") > 0 ? "job-ranks" : "ranks");
  if (needs.rollouter_ranks > 1) add("replica-ranks");
  // What is played needs workers of its own, unless the infra file puts one beside each rollouter. Without a command and
  // an image the environment is built in.
  const bool has_worker = !needs.worker_command.empty() || !request.infra.worker_image().empty();
  if (needs.plays && has_worker && all.count("environment") == 0) add("workers");
  if (all.count("workers") > 0) {
    if (all.count("mtls-cert-manager") > 0) {
      add("workers-mtls-cert-manager");
    } else if (all.count("mtls") > 0) {
      add("workers-mtls");
    }
    if (all.count("keda") > 0) add("workers-keda");
  }
  if (all.count("gateway") > 0) add("endpoint");
  return components;
}

// The components of the overlay and those of ComponentsOfRun.
std::set<std::string> AllOfRun(const FileTree& tree, const RenderRequest& request,
                               const std::vector<std::string>& components) {
  std::set<std::string> all = ComponentsOfOverlay(tree, request.overlay);
  all.insert(components.begin(), components.end());
  return all;
}

// A worker needs one of the components that run it.
std::vector<config::ConfigProblem> CheckWorker(const std::set<std::string>& all, const RenderRequest& request,
                                               const Needs& needs) {
  std::vector<config::ConfigProblem> problems;
  const bool beside = all.count("environment") > 0, own = all.count("workers") > 0;
  if (beside && own) {
    problems.push_back({request.infra.source(), "components", "environment, workers",
                        "one of them: a worker beside each rollouter, or workers with pods of their own", ""});
  }
  if (beside || own) return problems;
  const std::string image = request.infra.worker_image();
  if (!image.empty()) {
    problems.push_back({request.infra.source(), "environment.image", image,
                        "components: [workers] or components: [environment], which have a container of this image",
                        ""});
  }
  if (!needs.worker_command.empty()) {
    problems.push_back({request.config_source, "environment.command", needs.worker_command,
                        "components: [workers] in the infra file, which runs it in pods of its own, or components: "
                        "[environment], which runs it beside each rollouter, or nothing",
                        ""});
  }
  return problems;
}

std::vector<Infra::Wish> WishesOfRun(const std::set<std::string>& all, const RenderRequest& request,
                                     const Needs& needs) {
  const Infra::Ground ground = {.shared_state = needs.trainer_ranks > 1,
                                .worker = all.count("environment") > 0,
                                .workers = all.count("workers") > 0};
  std::vector<Infra::Wish> wishes = request.infra.Wishes(ground);
  if (needs.trainer_ranks > 1) wishes.push_back(Infra::RanksWish(needs.trainer_ranks));
  if (!needs.worker_command.empty()) wishes.push_back(Infra::CommandWish(needs.worker_command, ground.workers));
  const bool worker_tls = all.count("workers-mtls") > 0 || all.count("workers-mtls-cert-manager") > 0;
  if (worker_tls && !needs.trust_domain.empty()) wishes.push_back(Infra::TrustDomainWish(needs.trust_domain));
  // Before the infra file's own value, which may be another number: CheckFit then reports it.
  if (needs.rollouter_ranks > 1 && all.count("gpu") > 0) {
    wishes.insert(wishes.begin(), Infra::ReplicaWish(needs.rollouter_ranks));
  }
  return wishes;
}

// The objects that settings change: those of the overlay and of the components that are applied before.
absl::StatusOr<Objects> ObjectsBeforeSettings(const Rendered& rendered, const RenderRequest& request,
                                              const std::vector<std::string>& components, const Kubectl& kubectl) {
  std::vector<std::string> before;
  for (const std::string& name : components) {
    if (ComponentRank(name) < kSettingsRank) before.push_back(name);
  }
  FileTree tree = rendered.tree;
  tree[absl::StrCat(kBareFolder, "/kustomization.yaml")] =
      ToYaml(Document{{"apiVersion", "kustomize.config.k8s.io/v1beta1"},
                      {"kind", "Kustomization"},
                      {"resources", Document::array({"../overlays/" + request.overlay})},
                      {"components", ComponentPaths(before, /*settings=*/false)}});
  SYNCOPATE_ASSIGN_OR_RETURN(std::string text, kubectl.Kustomize(tree, kBareFolder));
  return ParseDocuments(text, "kubectl kustomize");
}

// Problems for values whose patches match no object.
absl::StatusOr<std::vector<config::ConfigProblem>> CheckWishes(const RenderRequest& request,
                                                               const std::vector<Infra::Wish>& wishes,
                                                               const Objects& objects) {
  std::vector<config::ConfigProblem> problems;
  for (const Infra::Wish& wish : wishes) {
    bool found = false;
    for (const Document& patch : wish.patches) {
      SYNCOPATE_ASSIGN_OR_RETURN(Selector target, Selector::Parse(patch["target"], request.infra.source()));
      found |= std::any_of(objects.begin(), objects.end(), [&](const Document& it) { return target.Matches(it); });
    }
    if (found) continue;
    problems.push_back({request.infra.source(), wish.key, wish.value,
                        absl::StrCat("not to be set: overlay ", request.overlay, " has nothing that takes it"), ""});
  }
  return problems;
}

bool AsksForGpu(const Objects& objects, const std::string& role) {
  for (const Document& object : objects) {
    for (const Document* pod_template : MakePodTemplates(object)) {
      for (const Document& container : (*pod_template)["spec"]["containers"]) {
        const Document::json_pointer gpus("/resources/limits/nvidia.com~1gpu");
        if (Text(container, {"name"}) == role && container.contains(gpus)) return true;
      }
    }
  }
  return false;
}

// The configuration's text unchanged, unless a device must be decided. Then it is the whole configuration, with the
// devices that the pods request.
std::string ConfigOfPods(const RenderRequest& request, const Objects& objects) {
  config::ParsedRunConfig parsed = config::ParseRunConfig(request.config, request.config_source);
  v1::RunConfig& config = parsed.config;
  const bool decide = config.train().device() == "auto" || config.rollout().device() == "auto";
  if (!parsed.problems.empty() || !decide) return request.config;
  auto resolve = [&](const std::string& role, std::string* device) {
    if (*device == "auto") *device = AsksForGpu(objects, role) ? "cuda" : "cpu";
  };
  resolve("trainer", config.mutable_train()->mutable_device());
  resolve("rollouter", config.mutable_rollout()->mutable_device());
  // Left open, because only the pods see the model, whose context may be shorter.
  const std::vector<std::string>& open = parsed.automatic;
  if (std::count(open.begin(), open.end(), "rollout.max_new_tokens") > 0) {
    config.mutable_rollout()->set_max_new_tokens(0);
  }
  return absl::StrCat("# ", request.config_source, ", with devices by the GPUs that the pods ask for.\n",
                      config::ToYaml(config));
}

absl::Status BuildObjects(const Kubectl& kubectl, Rendered* rendered) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::string text, kubectl.Kustomize(rendered->tree, kRunFolder));
  SYNCOPATE_ASSIGN_OR_RETURN(rendered->objects, ParseDocuments(text, "kubectl kustomize"));
  return absl::OkStatus();
}

absl::Status Refused(const std::string& reason, const std::vector<config::ConfigProblem>& problems) {
  return problems.empty() ? absl::OkStatus()
                          : Error(absl::StatusCode::kInvalidArgument, reason, config::ToString(problems));
}

}  // namespace

std::vector<std::string> MakeOverlays(const FileTree& tree) { return FoldersUnder(tree, "overlays"); }
std::vector<std::string> GetComponents(const FileTree& tree) { return FoldersUnder(tree, "components"); }

absl::StatusOr<Rendered> Render(const FileTree& tree, const RenderRequest& request, const Kubectl& kubectl) {
  SYNCOPATE_RETURN_IF_ERROR(Refused("BAD_REQUEST", CheckNames(tree, request)));
  const Needs needs = ReadNeeds(request);
  const std::vector<std::string> components = ComponentsOfRun(tree, request, needs);
  const std::set<std::string> all = AllOfRun(tree, request, components);
  SYNCOPATE_RETURN_IF_ERROR(Refused("BAD_REQUEST", CheckWorker(all, request, needs)));
  const std::vector<Infra::Wish> wishes = WishesOfRun(all, request, needs);
  Rendered rendered{{}, tree, kRunFolder};
  std::string& config = rendered.tree[absl::StrCat(kRunFolder, "/run.yaml")] = request.config;
  const Document settings = SettingsKustomization(request.infra, wishes);
  const bool any_settings = settings.contains("patches") || settings.contains("configMapGenerator");
  rendered.tree[absl::StrCat(kRunFolder, "/kustomization.yaml")] =
      ToYaml(RunKustomization(request, components, any_settings));
  if (any_settings) rendered.tree[absl::StrCat(kSettingsFolder, "/kustomization.yaml")] = ToYaml(settings);
  SYNCOPATE_RETURN_IF_ERROR(BuildObjects(kubectl, &rendered));
  if (std::string decided = ConfigOfPods(request, rendered.objects); decided != config) {
    config = std::move(decided);
    SYNCOPATE_RETURN_IF_ERROR(BuildObjects(kubectl, &rendered));
  }
  if (!wishes.empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(Objects before, ObjectsBeforeSettings(rendered, request, components, kubectl));
    SYNCOPATE_ASSIGN_OR_RETURN(auto problems, CheckWishes(request, wishes, before));
    SYNCOPATE_RETURN_IF_ERROR(Refused("BAD_REQUEST", problems));
  }
  SYNCOPATE_RETURN_IF_ERROR(Refused("BAD_CONFIG", CheckFit(rendered.objects, config, request.config_source)));
  return rendered;
}

}  // namespace syncopate::k8s
