#include "tests/support/test_cluster.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "tests/support/run_harness.h"

namespace syncopate::testing {
namespace {

using k8s::Document;
using k8s::Text;
namespace fs = std::filesystem;

constexpr char kBridge[] = "node";
constexpr char kNodeAddress[] = "10.88.0.1/16";
constexpr gid_t kPodGroup = 65532;  // stands for fsGroup

absl::Status Unsupported(const std::string& what) {
  return Error(absl::StatusCode::kFailedPrecondition, "NOT_LIKE_A_NODE", what + " is not done by this cluster");
}

absl::Status OnlyKeys(const Document& map, const std::set<std::string>& known, const std::string& where) {
  for (const auto& [key, value] : map.items()) {
    if (known.count(key) == 0) return Unsupported(absl::StrCat(where, ".", key));
  }
  return absl::OkStatus();
}

// Runs a program of this machine to its end.
absl::Status RunHost(const std::string& program, const std::vector<std::string>& words, const std::string& log) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto process, Process::Start({.program = program, .args = words, .log_path = log}));
  SYNCOPATE_ASSIGN_OR_RETURN(ExitStatus status, process->WaitExit(kPatience));
  if (status == ExitStatus{}) return absl::OkStatus();
  return Error(absl::StatusCode::kUnavailable, "NO_NAMESPACES", absl::StrCat(program, " failed: ", process->Log()));
}

absl::Status MakeFolder(const std::string& path, mode_t mode, gid_t group) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error && ::chown(path.c_str(), 0, group) == 0 && ::chmod(path.c_str(), mode) == 0) return absl::OkStatus();
  return Error(absl::StatusCode::kUnavailable, "NO_NAMESPACES", absl::StrCat(path, ": ", std::strerror(errno)));
}

// Writes files as a node writes the files of a volume: owned by root, in the pod's group.
absl::Status WriteFile(const std::string& path, const std::string& text, mode_t mode) {
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  std::ofstream file(path);
  file << text << std::flush;
  if (file && ::chown(path.c_str(), 0, kPodGroup) == 0 && ::chmod(path.c_str(), mode) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
}

int64_t Bytes(const std::string& quantity) {
  const std::pair<const char*, int64_t> units[] = {{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}};
  for (const auto& [unit, bytes] : units) {
    if (absl::EndsWith(quantity, unit)) return std::stoll(quantity) * bytes;
  }
  return std::stoll(quantity);
}

// Enables the network of the node: the network namespace of this thread, from this call on.
absl::Status MakeNode(const std::string& folder) {
  if (::geteuid() != 0 || ::unshare(CLONE_NEWNET) != 0) {
    return Error(absl::StatusCode::kUnavailable, "NO_NAMESPACES",
                 absl::StrCat("namespaces need root: ", std::strerror(errno)));
  }
  std::string ip;
  for (const char* path : {"/usr/sbin/ip", "/usr/bin/ip", "/sbin/ip"}) {
    if (ip.empty() && fs::exists(path)) ip = path;
  }
  if (ip.empty()) return Error(absl::StatusCode::kUnavailable, "NO_NAMESPACES", "there is no `ip`: install iproute2");
  const std::string log = folder + "/node.log";
  const std::vector<std::vector<std::string>> steps = {{"link", "set", "lo", "up"},
                                                       {"link", "add", kBridge, "type", "bridge"},
                                                       {"address", "add", kNodeAddress, "dev", kBridge},
                                                       {"link", "set", kBridge, "up"}};
  for (const std::vector<std::string>& step : steps) SYNCOPATE_RETURN_IF_ERROR(RunHost(ip, step, log));
  return absl::OkStatus();
}

// Folders of this machine with the binaries of this build and the libraries that they link to.
Document ProgramsOfImage() {
  Document programs = Document::object();
  for (const char* role : {"synchronizer", "trainer", "rollouter"}) {
    const std::string name = absl::StrCat("syncopate-", role);
    programs["/usr/bin/" + name] = BinaryPath(name);
  }
  programs["/usr/bin/syncopate"] = BinaryPath("syncopate");
  return programs;
}

// Replaces $(NAME) in an argument by the value of the variable, as Kubernetes does.
std::string Expanded(std::string argument, const Document& environment) {
  for (const auto& [name, value] : environment.items()) {
    argument = absl::StrReplaceAll(argument, {{absl::StrCat("$(", name, ")"), value.get<std::string>()}});
  }
  return argument;
}

absl::StatusOr<std::string> GetField(const std::string& path, const TestPod& pod) {
  if (path == "status.podIP") return pod.address;
  if (path == "metadata.name") return pod.name;
  if (path == "metadata.labels['apps.kubernetes.io/pod-index']" ||
      path == "metadata.annotations['batch.kubernetes.io/job-completion-index']") {
    return absl::StrCat(pod.index);
  }
  return Unsupported("fieldRef " + path);
}

}  // namespace

absl::StatusOr<Probe> Probe::Parse(const Document& probe, const Document& container) {
  SYNCOPATE_RETURN_IF_ERROR(
      OnlyKeys(probe, {"httpGet", "periodSeconds", "timeoutSeconds", "failureThreshold"}, "probe"));
  SYNCOPATE_RETURN_IF_ERROR(OnlyKeys(probe.at("httpGet"), {"path", "port"}, "httpGet"));
  Probe parsed;
  parsed.path_ = Text(probe, {"httpGet", "path"});
  for (const Document& port : container.at("ports")) {
    if (port["name"] == probe["httpGet"]["port"]) parsed.port_ = port["containerPort"];
  }
  if (parsed.port_ == 0) return Unsupported("a probe of a port without a name");
  parsed.period_ = absl::Seconds(probe.value("periodSeconds", 10));
  parsed.threshold_ = probe.value("failureThreshold", 3);
  return parsed;
}

void Probe::AskIfDue(absl::Time now, const std::string& address) {
  if (now < next_) return;
  next_ = now + period_;
  ++asked_;
  absl::StatusOr<std::string> answer = HttpGet(absl::StrCat(address, ":", port_), path_);
  last_answer_ = answer.ok() ? *answer : std::string(answer.status().message());
  failures_ = answer.ok() ? 0 : failures_ + 1;
}

absl::StatusOr<std::unique_ptr<TestCluster>> TestCluster::Create(std::vector<Document> objects,
                                                                 const std::string& folder) {
  std::unique_ptr<TestCluster> cluster(new TestCluster(std::move(objects), folder));
  SYNCOPATE_RETURN_IF_ERROR(MakeNode(folder));
  SYNCOPATE_RETURN_IF_ERROR(cluster->WriteHosts());
  return cluster;
}

const Document* TestCluster::Find(const std::string& kind, const std::string& name) const {
  for (const Document& object : objects_) {
    if (k8s::GetName(object) == absl::StrCat(kind, "/", name)) return &object;
  }
  return nullptr;
}

absl::StatusOr<const Document*> TestCluster::MakeWorkload(const std::string& role) const {
  for (const char* kind : {"Job", "StatefulSet", "Deployment"}) {
    if (const Document* workload = Find(kind, role)) return workload;
  }
  return Unsupported("a workload other than Job, StatefulSet and Deployment for " + role);
}

std::string TestCluster::ClaimFolder(const std::string& role) const { return absl::StrCat(folder_, "/claim-", role); }

absl::Status TestCluster::WriteProjected(const Document& projected, const std::string& folder) const {
  SYNCOPATE_RETURN_IF_ERROR(OnlyKeys(projected, {"sources", "defaultMode"}, "projected"));
  const mode_t mode = projected.value("defaultMode", 0644);
  for (const Document& source : projected["sources"]) {
    SYNCOPATE_RETURN_IF_ERROR(OnlyKeys(source, {"configMap", "secret"}, "projected"));
    const bool secret = source.contains("secret");
    const Document& wanted = source[secret ? "secret" : "configMap"];
    const Document* held = Find(secret ? "Secret" : "ConfigMap", Text(wanted, {"name"}));
    if (held == nullptr) return absl::NotFoundError("there is no ConfigMap or Secret " + Text(wanted, {"name"}));
    const Document& data = (*held)[secret ? "stringData" : "data"];
    std::map<std::string, std::string> paths;  // paths of the keys
    for (const auto& [key, value] : data.items()) paths[key] = key;
    if (wanted.contains("items")) paths.clear();
    for (const Document& item : wanted.value("items", Document::array())) paths[item["key"]] = item["path"];
    for (const auto& [key, path] : paths) {
      SYNCOPATE_RETURN_IF_ERROR(WriteFile(absl::StrCat(folder, "/", path), data.at(key), mode));
    }
  }
  return absl::OkStatus();
}

// The folder that stands for a volume; "" for one in memory.
absl::StatusOr<std::string> TestCluster::VolumeFolder(const Document& volume, const TestPod& made) {
  SYNCOPATE_RETURN_IF_ERROR(OnlyKeys(volume, {"name", "emptyDir", "projected", "persistentVolumeClaim"}, "volume"));
  if (volume.contains("persistentVolumeClaim")) {
    const std::string claim = Text(volume, {"persistentVolumeClaim", "claimName"});
    if (Find("PersistentVolumeClaim", claim) == nullptr) return absl::NotFoundError("there is no claim " + claim);
    const std::string folder = ClaimFolder(made.role);
    SYNCOPATE_RETURN_IF_ERROR(MakeFolder(folder, 02775, kPodGroup));
    return folder;
  }
  if (Text(volume, {"emptyDir", "medium"}) == "Memory") return std::string();
  const std::string folder = absl::StrCat(folder_, "/", made.name, "/", Text(volume, {"name"}));
  SYNCOPATE_RETURN_IF_ERROR(MakeFolder(folder, volume.contains("emptyDir") ? 02777 : 0755, kPodGroup));
  if (volume.contains("projected")) {
    SYNCOPATE_RETURN_IF_ERROR(WriteProjected(volume["projected"], folder));
  }
  return folder;
}

absl::StatusOr<Document> TestCluster::MakeMounts(const Document& pod, const Document& container, const TestPod& made) {
  const fs::path libraries = fs::path(SYNCOPATE_VENV_LIBRARIES);
  Document mounts = Document::array({{{"from", folder_ + "/hosts"}, {"to", "/etc/hosts"}, {"read_only", true}}});
  for (const Document& mount : container.at("volumeMounts")) {
    SYNCOPATE_RETURN_IF_ERROR(OnlyKeys(mount, {"name", "mountPath", "readOnly"}, "volumeMount"));
    for (const Document& volume : pod.at("volumes")) {
      if (volume["name"] != mount["name"]) continue;
      SYNCOPATE_ASSIGN_OR_RETURN(std::string folder, VolumeFolder(volume, made));
      Document made_mount = {{"to", mount["mountPath"]}};
      if (folder.empty()) {
        made_mount["size"] = Bytes(Text(volume, {"emptyDir", "sizeLimit"}));
      } else {
        made_mount["from"] = folder;
        made_mount["read_only"] = mount.value("readOnly", false) || volume.contains("projected");
      }
      mounts.push_back(std::move(made_mount));
    }
  }
  // The pod's own mounts come last: one of them may cover the place of these files.
  mounts.push_back({{"from", libraries}, {"to", libraries}, {"read_only", true}});
  return mounts;
}

absl::StatusOr<Document> TestCluster::GetSpec(const Document& pod, const TestPod& made) {
  const Document& container = pod.at("containers").at(0);
  SYNCOPATE_RETURN_IF_ERROR(
      OnlyKeys(pod,
               {"affinity", "automountServiceAccountToken", "containers", "enableServiceLinks", "restartPolicy",
                "securityContext", "serviceAccountName", "subdomain", "terminationGracePeriodSeconds", "volumes"},
               "pod"));
  SYNCOPATE_RETURN_IF_ERROR(OnlyKeys(container,
                                     {"args", "command", "env", "envFrom", "image", "livenessProbe", "name", "ports",
                                      "readinessProbe", "resources", "securityContext", "startupProbe", "volumeMounts"},
                                     "container"));
  Document environment = Document::object();
  for (const Document& source : container.value("envFrom", Document::array())) {
    const Document* map = Find("ConfigMap", Text(source, {"configMapRef", "name"}));
    if (map == nullptr) return absl::NotFoundError("envFrom: there is no such ConfigMap");
    environment.update((*map)["data"]);
  }
  for (const Document& variable : container.value("env", Document::array())) {
    SYNCOPATE_ASSIGN_OR_RETURN(environment[Text(variable, {"name"})],
                               GetField(Text(variable, {"valueFrom", "fieldRef", "fieldPath"}), made));
  }
  Document command = container.at("command");
  for (const Document& argument : container.at("args")) {
    command.push_back(Expanded(argument.get<std::string>(), environment));
  }
  const Document& security = pod.at("securityContext");
  if (security.at("fsGroup") != kPodGroup) return Unsupported("another fsGroup than 65532");
  SYNCOPATE_ASSIGN_OR_RETURN(Document mounts, MakeMounts(pod, container, made));
  const std::string root = absl::StrCat(folder_, "/", made.name, "/root");
  SYNCOPATE_RETURN_IF_ERROR(MakeFolder(root, 0755, 0));
  return Document{{"address", made.address + "/16"},
                  {"bridge", kBridge},
                  {"port", absl::StrCat("pod", pods_.size())},
                  {"root", root},
                  {"mounts", mounts},
                  {"programs", ProgramsOfImage()},
                  {"command", command},
                  {"environment", environment},
                  {"user", security.at("runAsUser")},
                  {"groups", {security.at("runAsGroup"), security.at("fsGroup")}},
                  {"read_only_root", container.at("securityContext").at("readOnlyRootFilesystem")}};
}

absl::StatusOr<TestPod*> TestCluster::StartPod(const std::string& role) {
  SYNCOPATE_ASSIGN_OR_RETURN(const Document* workload, MakeWorkload(role));
  const Document& pod = (*workload)["spec"]["template"]["spec"];
  const Document& container = pod.at("containers").at(0);
  auto made = std::make_unique<TestPod>();
  const size_t number = pods_.size() + 1;
  made->role = Text(container, {"name"});
  made->index = FreeIndex(made->role);
  made->name = absl::StrCat(role, "-", number);
  made->address = absl::StrCat("10.88.", number / 200, ".", 10 + number % 200);
  made->grace = absl::Seconds(pod.value("terminationGracePeriodSeconds", 30));
  SYNCOPATE_ASSIGN_OR_RETURN(made->startup, Probe::Parse(container.at("startupProbe"), container));
  SYNCOPATE_ASSIGN_OR_RETURN(made->liveness, Probe::Parse(container.at("livenessProbe"), container));
  SYNCOPATE_ASSIGN_OR_RETURN(made->readiness, Probe::Parse(container.at("readinessProbe"), container));
  SYNCOPATE_ASSIGN_OR_RETURN(Document spec, GetSpec(pod, *made));
  const std::string path = absl::StrCat(folder_, "/", made->name, "/spec.json");
  std::ofstream(path) << spec.dump(2);
  SYNCOPATE_ASSIGN_OR_RETURN(made->process,
                             Process::Start({.program = BinaryPath("syncopate-pod-runner"),
                                             .args = {path},
                                             .log_path = absl::StrCat(folder_, "/", made->name, "/log")}));
  pods_.push_back(std::move(made));
  SYNCOPATE_RETURN_IF_ERROR(WriteHosts());
  return pods_.back().get();
}

int64_t TestCluster::FreeIndex(const std::string& role) const {
  std::set<int64_t> taken;
  for (const auto& pod : pods_) {
    if (pod->role == role && pod->process->Running()) taken.insert(pod->index);
  }
  int64_t index = 0;
  while (taken.count(index) > 0) ++index;
  return index;
}

absl::Status TestCluster::StartAll() {
  for (const char* role : {"synchronizer", "trainer", "rollouter"}) {
    SYNCOPATE_ASSIGN_OR_RETURN(const Document* workload, MakeWorkload(role));
    const Document& spec = (*workload)["spec"];
    const int64_t count = spec.value("parallelism", spec.value("replicas", 1));
    for (int64_t i = 0; i < count; ++i) SYNCOPATE_RETURN_IF_ERROR(StartPod(role).status());
  }
  return absl::OkStatus();
}

// The file is written in place, since it is mounted into pods as a file.
absl::Status TestCluster::WriteHosts() const {
  std::string hosts = "127.0.0.1 localhost\n";
  for (const Document& service : objects_) {
    if (Text(service, {"kind"}) != "Service") continue;
    const std::string name = Text(service, {"metadata", "name"});
    // of the newest pod that the Service selects, and of the newest pod of each index
    std::map<std::string, std::string> addresses;
    for (const auto& pod : pods_) {
      if (pod->role != Text(service, {"spec", "selector", "app.kubernetes.io/component"})) continue;
      addresses[name] = addresses[absl::StrCat(pod->role, "-", pod->index, ".", name)] = pod->address;
    }
    for (const auto& [host, address] : addresses) absl::StrAppend(&hosts, address, " ", host, "\n");
  }
  std::ofstream file(folder_ + "/hosts", std::ios::trunc);
  file << hosts << std::flush;
  return file ? absl::OkStatus() : absl::UnavailableError("the hosts file cannot be written");
}

bool TestCluster::ProbeUntil(absl::Duration timeout, const std::function<bool()>& done) {
  return Eventually(timeout, [&] {
    for (const auto& pod : pods_) {
      if (!pod->process->Running()) continue;
      const absl::Time now = absl::Now();
      if (!pod->started) {
        pod->startup.AskIfDue(now, pod->address);
        pod->started = pod->startup.passed();
        pod->would_be_restarted |= pod->startup.exhausted();
        continue;
      }
      pod->liveness.AskIfDue(now, pod->address);
      pod->readiness.AskIfDue(now, pod->address);
      pod->was_ready |= pod->readiness.passed();
      pod->would_be_restarted |= pod->liveness.exhausted();
    }
    return done();
  });
}

absl::StatusOr<ExitStatus> TestCluster::Terminate(TestPod* pod) {
  pod->process->Terminate();
  return pod->process->WaitExit(pod->grace);
}

}  // namespace syncopate::testing
