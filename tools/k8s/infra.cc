#include "tools/k8s/infra.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "services/config/duration.h"
#include "services/config/problem.h"
#include "services/config/schema.h"

namespace syncopate::k8s {
namespace {

constexpr char kPods[] = "StatefulSet|Deployment|Job";
constexpr char kDaemons[] = "synchronizer|trainer|rollouter";  // names; others do not take a daemon's settings
constexpr char kPodSpec[] = "/spec/template/spec";
constexpr char kContainer[] = "/spec/template/spec/containers/0";
constexpr char kShmVolume[] = "/spec/template/spec/volumes/1";      // of every role, as in deploy/kustomize/base
constexpr char kWorker[] = "/spec/template/spec/initContainers/0";  // as in the component environment
constexpr char kWorkerSocket[] = "unix:/run/syncopate/worker.sock";
constexpr absl::Duration kTermination = absl::Seconds(15);  // from the end of run.grace until a pod is killed

// The allowed form of a value.
struct Form {
  std::string expected;
  std::function<bool(const Document&)> fits;
};

Form Matching(const std::string& expression, const std::string& expected) {
  return {expected, [pattern = std::regex(expression)](const Document& value) {
            const bool number = value.is_number_integer() && value >= 0;
            // YAML reads an instance named 7, and cpu: 4, as numbers.
            return (value.is_string() || number) &&
                   std::regex_match(number ? value.dump() : value.get<std::string>(), pattern);
          }};
}

Form Count(int64_t least, int64_t most) {
  return {absl::StrCat("an integer from ", least, " to ", most),
          [=](const Document& value) { return value.is_number_integer() && value >= least && value <= most; }};
}

bool AllOf(const Document& value, bool (Document::*is)() const noexcept) {
  return std::all_of(value.begin(), value.end(), [is](const Document& part) { return (part.*is)(); });
}

Form Name() {
  return Matching("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "a DNS label: lower-case letters, digits and dashes");
}
Form Quantity() {
  return Matching("[0-9]+(\\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?", "a Kubernetes quantity such as 500m or 16Gi");
}
Form Image() {
  return Matching("[a-z0-9][a-z0-9._:/-]*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}|@sha256:[0-9a-f]{64})",
                  "an image with a tag or a digest, such as registry.example/syncopate:0.1.0");
}
Form Seconds() {
  return {"a duration with its unit, such as 60s", [](const Document& value) {
            auto duration = value.is_string() ? config::ParseDuration(value.get<std::string>())
                                              : absl::StatusOr<absl::Duration>(absl::InvalidArgumentError(""));
            return duration.ok() && *duration >= absl::Seconds(1) && *duration <= absl::Hours(24);
          }};
}
Form Texts() {
  return {"a list of texts",
          [](const Document& value) { return value.is_array() && AllOf(value, &Document::is_string); }};
}
Form Maps() {
  return {"a list of maps",
          [](const Document& value) { return value.is_array() && AllOf(value, &Document::is_object); }};
}
Form TextMap() {
  return {"a map of texts (numbers in quotes)",
          [](const Document& value) { return value.is_object() && AllOf(value, &Document::is_string); }};
}

bool IsAbsolutePath(const std::string& path) {
  return path.size() > 1 && path.front() == '/' && path.back() != '/' && path.find(':') == std::string::npos &&
         std::filesystem::path(path).lexically_normal() == path;
}

// Mount paths that the pods already use.
const std::set<std::string>& PathsInUse() {
  static const auto* const paths =
      new std::set<std::string>{"/etc/syncopate", "/var/lib/syncopate", "/dev/shm", "/tmp", "/run/syncopate"};
  return *paths;
}

bool IsVolume(const Document& value) {
  static const auto* const claim = new std::regex("[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?");
  if (!value.is_object()) return false;
  for (const auto& [key, ignored] : value.items()) {
    if (key != "claim" && key != "path" && key != "read_only") return false;
  }
  return std::regex_match(Text(value, {"claim"}), *claim) && IsAbsolutePath(Text(value, {"path"})) &&
         (!value.contains("read_only") || value["read_only"].is_boolean());
}

Form Volumes() {
  return {
      "a list of {claim: NAME, path: /ABSOLUTE/PATH, read_only: true or false}, each at a path of its own that is "
      "none of the pods' (/etc/syncopate, /var/lib/syncopate, /run/syncopate, /dev/shm, /tmp)",
      [](const Document& value) {
        std::set<std::string> paths = PathsInUse();
        return value.is_array() && std::all_of(value.begin(), value.end(), [&paths](const Document& volume) {
                 return IsVolume(volume) && paths.insert(Text(volume, {"path"})).second;
               });
      }};
}

const std::map<std::string, Form>& Forms() {
  static const auto* const forms = new std::map<std::string, Form>([] {
    std::map<std::string, Form> made = {
        {"namespace", Name()},      {"instance", Name()},
        {"image", Image()},         {"image_pull_secrets", Texts()},
        {"priority_class", Name()}, {"storage_class", Name()},
        {"grace", Seconds()},       {"components", Texts()},
        {"nccl", TextMap()},        {"rollouter.replicas", Count(1, 10000)},
        {"volumes", Volumes()},     {"environment.image", Image()},
    };
    for (const std::string role : {"synchronizer", "trainer", "rollouter"}) {
      made[role + ".cpu"] = made[role + ".memory"] = made[role + ".shm"] = Quantity();
      made[role + ".node_selector"] = TextMap();
      made[role + ".tolerations"] = Maps();
      (role == "rollouter" ? made["rollouter.gpus"] : made[role + ".storage"]) =
          role == "rollouter" ? Count(1, 64) : Quantity();
    }
    made["trainer.gpus"] = Count(1, 64);
    for (const std::string part : {"environment", "gateway"}) {
      made[part + ".replicas"] = Count(1, 10000);
      made[part + ".cpu"] = made[part + ".memory"] = Quantity();
      made[part + ".node_selector"] = TextMap();
      made[part + ".tolerations"] = Maps();
    }
    return made;
  }());
  return *forms;
}

bool IsSection(const std::string& key) {
  return key == "synchronizer" || key == "trainer" || key == "rollouter" || key == "environment" || key == "gateway";
}

std::string NearestKey(const std::string& key) {
  auto nearer = [&](const auto& a, const auto& b) {
    return config::EditDistance(key, a.first) < config::EditDistance(key, b.first);
  };
  return std::min_element(Forms().begin(), Forms().end(), nearer)->first;
}

void CheckValue(const std::string& source, const std::string& key, const Document& value,
                std::vector<config::ConfigProblem>* problems) {
  auto form = Forms().find(key);
  if (form == Forms().end()) {
    problems->push_back({source, key, value.dump(), "a known key", NearestKey(key)});
  } else if (!form->second.fits(value)) {
    problems->push_back({source, key, value.dump(), form->second.expected, ""});
  }
}

// Flattens sections: from key to value, with keys such as "trainer.cpu".
std::map<std::string, Document> Flat(const Document& values) {
  std::map<std::string, Document> flat;
  for (const auto& [key, value] : values.items()) {
    if (!IsSection(key) || !value.is_object()) {
      flat[key] = value;
      continue;
    }
    for (const auto& [inner, inner_value] : value.items()) flat[absl::StrCat(key, ".", inner)] = inner_value;
  }
  return flat;
}

Document Operation(const std::string& op, const std::string& path, const Document& value) {
  return {{"op", op}, {"path", path}, {"value", value}};
}

// One entry of a kustomization's `patches`.
Document MakePatch(Document target, const std::vector<Document>& operations) {
  return {{"target", std::move(target)}, {"patch", ToYaml(Document(operations))}};
}

Document Pods(const std::string& role) { return {{"kind", kPods}, {"name", role}}; }

// Kubernetes accepts cpu as text or number; text is read the same everywhere.
Document AsText(const Document& value) { return value.is_string() ? value : Document(value.dump()); }

std::vector<Document> CountPatches(const std::string& kind, const std::string& role, const Document& count) {
  return {MakePatch({{"kind", kind}, {"name", role}}, {Operation("replace", "/spec/replicas", count)}),
          MakePatch({{"kind", "Job"}, {"name", role}}, {Operation("replace", "/spec/completions", count),
                                                        Operation("replace", "/spec/parallelism", count)})};
}

std::vector<Document> RolePatches(const std::string& role, const std::string& key, const Document& value,
                                  bool shared_state) {
  auto pods = [&](const std::vector<Document>& operations) { return MakePatch(Pods(role), operations); };
  if (key == "replicas") return CountPatches("Deployment", role, value);
  if (key == "gpus") {
    return {pods({Operation("add", absl::StrCat(kContainer, "/resources/limits/nvidia.com~1gpu"), value)})};
  }
  if (key == "cpu") {
    return {pods({Operation("replace", absl::StrCat(kContainer, "/resources/requests/cpu"), AsText(value))})};
  }
  if (key == "memory") {
    return {pods({Operation("replace", absl::StrCat(kContainer, "/resources/requests/memory"), AsText(value)),
                  Operation("replace", absl::StrCat(kContainer, "/resources/limits/memory"), AsText(value))})};
  }
  if (key == "shm") {
    return {pods({Operation("test", absl::StrCat(kShmVolume, "/name"), "shm"),
                  Operation("replace", absl::StrCat(kShmVolume, "/emptyDir/sizeLimit"), AsText(value))})};
  }
  if (key == "storage") {
    const std::string size = "/spec/resources/requests/storage";
    std::vector<Document> patches = {MakePatch({{"kind", "PersistentVolumeClaim"}, {"name", role + "-state"}},
                                               {Operation("replace", size, AsText(value))})};
    if (role == "trainer" && shared_state) return patches;
    patches.push_back(MakePatch({{"kind", "StatefulSet"}, {"name", role}},
                                {Operation("replace", "/spec/volumeClaimTemplates/0" + size, AsText(value))}));
    return patches;
  }
  return {
      pods({Operation("add", absl::StrCat(kPodSpec, key == "tolerations" ? "/tolerations" : "/nodeSelector"), value)})};
}

// Mounts claims in each pod of trainer and rollouters, and in workers, because users' code reads files too.
std::vector<Document> VolumePatches(const Document& volumes, const Infra::Ground& ground) {
  std::vector<Document> patches;
  std::vector<std::string> roles = {"trainer", "rollouter"};
  if (ground.workers) roles.push_back("environment");
  for (const std::string& role : roles) {
    std::vector<Document> operations;
    for (size_t i = 0; i < volumes.size(); ++i) {
      const std::string name = absl::StrCat("claim-", i);
      const bool read_only = volumes[i].value("read_only", false);
      const Document source = {{"claimName", volumes[i]["claim"]}, {"readOnly", read_only}};
      const Document mount = {{"name", name}, {"mountPath", volumes[i]["path"]}, {"readOnly", read_only}};
      operations.push_back(
          Operation("add", absl::StrCat(kPodSpec, "/volumes/-"), {{"name", name}, {"persistentVolumeClaim", source}}));
      operations.push_back(Operation("add", absl::StrCat(kContainer, "/volumeMounts/-"), mount));
      if (ground.worker && role == "rollouter") {
        operations.push_back(Operation("add", absl::StrCat(kWorker, "/volumeMounts/-"), mount));
      }
    }
    patches.push_back(MakePatch(Pods(role), operations));
  }
  return patches;
}

std::vector<Document> GlobalPatches(const std::string& key, const Document& value, const Infra::Ground& ground) {
  const bool shared_state = ground.shared_state;
  if (key == "volumes") return VolumePatches(value, ground);
  const Document all_pods = {{"kind", kPods}, {"labelSelector", "app.kubernetes.io/name=syncopate"}};
  if (key == "storage_class") {
    Document with_templates = {{"kind", "StatefulSet"}};
    if (shared_state) with_templates["name"] = "synchronizer";
    return {MakePatch(std::move(with_templates),
                      {Operation("add", "/spec/volumeClaimTemplates/0/spec/storageClassName", value)}),
            MakePatch({{"kind", "PersistentVolumeClaim"}}, {Operation("add", "/spec/storageClassName", value)})};
  }
  if (key == "image_pull_secrets") {
    Document secrets = Document::array();
    for (const Document& name : value) secrets.push_back({{"name", name}});
    return {MakePatch(all_pods, {Operation("add", absl::StrCat(kPodSpec, "/imagePullSecrets"), secrets)})};
  }
  if (key == "priority_class") {
    return {MakePatch(all_pods, {Operation("add", absl::StrCat(kPodSpec, "/priorityClassName"), value)})};
  }
  if (key == "grace") {
    const int64_t seconds = absl::ToInt64Seconds(config::CheckedDuration(value.get<std::string>()) + kTermination);
    return {MakePatch({{"kind", kPods}, {"name", kDaemons}},
                      {Operation("add", absl::StrCat(kContainer, "/args/-"), "run.grace=" + value.get<std::string>()),
                       Operation("replace", absl::StrCat(kPodSpec, "/terminationGracePeriodSeconds"), seconds)})};
  }
  const std::string label = "/labels/app.kubernetes.io~1instance";
  return {MakePatch({{"labelSelector", "app.kubernetes.io/name=syncopate"}},
                    {Operation("add", "/metadata" + label, value)}),
          MakePatch(all_pods, {Operation("add", "/spec/template/metadata" + label, value)})};
}

// Whether the key belongs to the kustomization as a whole, and not to a patch.
bool IsOfKustomization(const std::string& key) {
  return key == "namespace" || key == "image" || key == "components" || key == "nccl" || key == "environment.image";
}

}  // namespace

absl::StatusOr<Infra> Infra::Parse(const std::string& text, const std::string& source) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<Document> documents, ParseDocuments(text, source));
  Infra infra;
  infra.source_ = source;
  std::vector<config::ConfigProblem> problems;
  if (!documents.empty()) infra.values_ = documents[0];
  if (documents.size() > 1 || !infra.values_.is_object()) {
    problems.push_back({source, "", "", "one map of keys such as `image:`", ""});
    infra.values_ = Document::object();
  }
  for (const auto& [key, value] : Flat(infra.values_)) CheckValue(source, key, value, &problems);
  if (problems.empty()) return infra;
  return Error(absl::StatusCode::kInvalidArgument, "BAD_INFRA", config::ToString(problems));
}

std::vector<std::string> Infra::components() const { return values_.value("components", std::vector<std::string>()); }

Infra::Wish Infra::RanksWish(int64_t world) {
  return {"trainer.world", absl::StrCat(world), CountPatches("StatefulSet", "trainer", world)};
}

Infra::Wish Infra::ReplicaWish(int64_t ranks) {
  return {"rollout.tensor_parallel", absl::StrCat(ranks), RolePatches("rollouter", "gpus", ranks, false)};
}

Infra::Wish Infra::CommandWish(const std::string& command, bool workers) {
  // A shell parses the command and replaces itself by it, as with `syncopate run`.
  const Document words = {"/bin/sh", "-c", absl::StrCat("exec ", command, " \"$@\""), "sh"};
  if (workers) {
    return {"environment.command",
            command,
            {MakePatch(Pods("environment"), {Operation("replace", absl::StrCat(kContainer, "/command"), words)})}};
  }
  return {"environment.command",
          command,
          {MakePatch(Pods("rollouter"), {Operation("test", absl::StrCat(kWorker, "/name"), "worker"),
                                         Operation("replace", absl::StrCat(kWorker, "/command"), words),
                                         Operation("replace", absl::StrCat(kWorker, "/args"),
                                                   Document::array({"--listen", kWorkerSocket}))})}};
}

Infra::Wish Infra::TrustDomainWish(const std::string& domain) {
  const std::string end = absl::StrCat(kContainer, "/args/-");
  return {"security.trust_domain",
          domain,
          {MakePatch(Pods("environment"), {Operation("add", end, "--trust-domain"), Operation("add", end, domain)})}};
}

std::vector<Infra::Wish> Infra::Wishes(const Ground& ground) const {
  std::vector<Wish> wishes;
  for (const auto& [key, value] : Flat(values_)) {
    if (IsOfKustomization(key) || value.empty()) continue;  // an empty list changes nothing
    const std::vector<std::string> words = absl::StrSplit(key, '.');
    wishes.push_back({key, value.dump(),
                      words.size() == 2 ? RolePatches(words[0], words[1], value, ground.shared_state)
                                        : GlobalPatches(key, value, ground)});
  }
  return wishes;
}

}  // namespace syncopate::k8s
