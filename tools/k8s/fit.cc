#include "tools/k8s/fit.h"

#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "services/config/data_files.h"
#include "services/config/duration.h"
#include "services/config/run_config.h"
#include "synchronizer/transport/transport_traits.h"

namespace syncopate::k8s {
namespace {

const Document* Find(const Document& document, const std::string& pointer) {
  const Document::json_pointer path(pointer);
  return document.contains(path) ? &document.at(path) : nullptr;
}

// The value that Kubernetes would put for $(NAME): any value of the right form will do here.
std::string Expanded(const std::string& argument) {
  return absl::StrReplaceAll(argument, {{"$(POD_IP)", "10.0.0.1"}, {"$(POD_NAME)", "rollouter-0"}});
}

struct Mount {
  std::string path;
  bool read_only = false;
};

// Mounts whose contents outlive the pod.
std::vector<Mount> LastingMounts(const Document& pod, const Document& container) {
  std::set<std::string> passing;
  for (const Document& volume : pod.value("volumes", Document::array())) {
    if (volume.contains("emptyDir")) passing.insert(Text(volume, {"name"}));
  }
  std::vector<Mount> mounts;
  for (const Document& mount : container.value("volumeMounts", Document::array())) {
    if (passing.count(Text(mount, {"name"})) > 0) continue;
    mounts.push_back({Text(mount, {"mountPath"}), mount.value("readOnly", false)});
  }
  return mounts;
}

// The innermost mount that contains a path; null if there is none, as for every relative path.
const Mount* MakeMount(const std::vector<Mount>& mounts, const std::string& path) {
  const std::string normal = std::filesystem::path(path).lexically_normal().string();
  const Mount* innermost = nullptr;
  for (const Mount& mount : mounts) {
    const bool under = normal == mount.path || absl::StartsWith(normal, mount.path + "/");
    if (under && (innermost == nullptr || mount.path.size() > innermost->path.size())) innermost = &mount;
  }
  return innermost;
}

struct PathSetting {
  std::string key;
  std::string path;
  bool written = false;
};

// The paths that the daemon of a role reads or writes. Only the trainer reads files of prompts and the model.
std::vector<PathSetting> PathSettings(const v1::RunConfig& config, const std::string& role) {
  const v1::SecuritySection& security = config.security();
  auto of_role = [&role](const std::string& path) { return absl::StrReplaceAll(path, {{"{role}", role}}); };
  std::vector<PathSetting> settings = {{"security.tls_cert", of_role(security.tls_cert())},
                                       {"security.tls_key", of_role(security.tls_key())},
                                       {"security.tls_ca", of_role(security.tls_ca())},
                                       {"security.token_file", of_role(security.token_file())}};
  if (role == "trainer") {
    settings.push_back({"model.path", config.model().path()});
    settings.push_back({"lora.path", config.lora().path()});
    settings.push_back({"checkpoint.dir", config.checkpoint().dir(), /*written=*/true});
    for (const auto& [key, list] :
         {std::pair("data.files", config.data().files()), std::pair("data.eval_files", config.data().eval_files())}) {
      const auto files = config::ParseDataFiles(list);
      if (!files.ok()) continue;  // the configuration's own rules report it
      for (const config::DataFile& file : *files) settings.push_back({key, file.path});
    }
  }
  std::erase_if(settings, [](const PathSetting& setting) { return setting.path.empty(); });
  return settings;
}

bool IsDaemon(const std::string& role) { return role == "synchronizer" || role == "trainer" || role == "rollouter"; }

class FitCheck {
 public:
  FitCheck(const std::string& config, const std::string& source) : config_(config), source_(source) {}

  void CheckPod(const Document& pod) {
    for (const Document& container : pod.value("containers", Document::array())) {
      // A worker or a gateway does not read the configuration.
      if (!IsDaemon(Text(container, {"name"}))) continue;
      std::vector<std::string> overrides;
      for (const Document& argument : container.value("args", Document::array())) {
        const std::string word = Expanded(argument.get<std::string>());
        if (absl::StrContains(word, "=") && !absl::StartsWith(word, "-")) overrides.push_back(word);
      }
      config::ParsedRunConfig parsed = config::ParseRunConfig(config_, source_, overrides);
      for (const config::ConfigProblem& problem : parsed.problems) Add(problem);
      if (!parsed.problems.empty()) continue;
      last_ = parsed.config;
      CheckDevice(container, parsed.config);
      CheckPaths(pod, container, parsed.config);
      CheckGrace(pod, parsed.config);
    }
  }

  // The URI names of certificates must begin with the trust domain that the daemons check.
  void CheckCertificate(const Document& object) {
    const Document* uris = Find(object, "/spec/uris");
    if (uris == nullptr || last_.security().trust_domain().empty()) return;
    const std::string wanted = absl::StrCat("spiffe://", last_.security().trust_domain(), "/");
    for (const Document& uri : *uris) {
      if (absl::StartsWith(uri.get<std::string>(), wanted)) continue;
      Add({source_, "security.trust_domain", last_.security().trust_domain(),
           absl::StrCat("the domain of the certificates that the component mtls-cert-manager has made, which are for ",
                        uri.get<std::string>()),
           ""});
    }
  }

  std::vector<config::ConfigProblem> Take() { return std::move(problems_); }

 private:
  // Adds a problem unless another role has reported the same one.
  void Add(const config::ConfigProblem& problem) {
    for (const config::ConfigProblem& known : problems_) {
      if (known.ToString() == problem.ToString()) return;
    }
    problems_.push_back(problem);
  }

  void CheckDevice(const Document& container, const v1::RunConfig& config) {
    const std::string role = Text(container, {"name"});
    if (role == "synchronizer") return;
    const std::string key = role == "trainer" ? "train.device" : "rollout.device";
    const std::string device = role == "trainer" ? config.train().device() : config.rollout().device();
    const Document* const gpus = Find(container, "/resources/limits/nvidia.com~1gpu");
    const bool has_gpu = gpus != nullptr;
    if (device == "cpu" && has_gpu) {
      Add({source_, key, device, absl::StrCat("cuda:0 or auto: each ", role, " pod is given a GPU"), ""});
    } else if (absl::StartsWith(device, "cuda") && !has_gpu) {
      Add({source_, key, device, absl::StrCat("cpu, or ", role, ".gpus in the infra file: no GPU is asked for"), ""});
    }
    const int64_t ranks = config.rollout().tensor_parallel();
    if (role == "rollouter" && has_gpu && device != "cpu" && *gpus != ranks) {
      Add({source_, "rollout.tensor_parallel", absl::StrCat(ranks),
           absl::StrCat("a GPU for each rank: rollouter.gpus in the infra file is ", gpus->dump()), ""});
    }
    if (config.run().share_gpu()) {
      Add({source_, "run.share_gpu", "true", "false: pods do not share a GPU, nor its host's memory", ""});
    }
    const auto* transport = synchronizer::FindTransport(config.sync().transport());
    if (transport != nullptr && transport->one_host) {
      Add({source_, "sync.transport", config.sync().transport(), "auto, nccl or grpc: pods do not share GPU memory",
           ""});
    }
  }

  // Files that a daemon reads or keeps must come from outside its pod: the image contains nothing of a run, and an
  // emptyDir starts empty and is deleted with the pod.
  void CheckPaths(const Document& pod, const Document& container, const v1::RunConfig& config) {
    const std::vector<Mount> mounts = LastingMounts(pod, container);
    std::vector<std::string> names;
    for (const Mount& mount : mounts) names.push_back(mount.path);
    const std::string role = Text(container, {"name"});
    for (const PathSetting& setting : PathSettings(config, role)) {
      const Mount* const found = MakeMount(mounts, setting.path);
      if (found != nullptr && !(setting.written && found->read_only)) continue;
      Add({source_, setting.key, setting.path,
           absl::StrCat("a path under a ", setting.written ? "writable " : "", "mount of the ", role, " pods (",
                        names.empty() ? "there is none" : absl::StrJoin(names, ", "),
                        "); `volumes` in the infra file mounts more"),
           ""});
    }
  }

  void CheckGrace(const Document& pod, const v1::RunConfig& config) {
    const int64_t allowed = pod.value("terminationGracePeriodSeconds", 30);
    if (config::CheckedDuration(config.run().grace()) < absl::Seconds(allowed)) return;
    Add({source_, "run.grace", config.run().grace(),
         absl::StrCat("less than terminationGracePeriodSeconds, ", allowed, " s: set `grace` in the infra file"), ""});
  }

  const std::string& config_;
  const std::string& source_;
  v1::RunConfig last_;  // the last configuration without problems
  std::vector<config::ConfigProblem> problems_;
};

}  // namespace

std::vector<const Document*> MakePodTemplates(const Document& object) {
  std::vector<const Document*> templates;
  if (const Document* jobs = Find(object, "/spec/replicatedJobs")) {
    for (const Document& job : *jobs) templates.push_back(Find(job, "/template/spec/template"));
  }
  templates.push_back(Find(object, "/spec/template"));
  templates.push_back(Find(object, "/spec/leaderWorkerTemplate/workerTemplate"));
  std::erase(templates, nullptr);
  return templates;
}

std::vector<config::ConfigProblem> CheckFit(const Objects& objects, const std::string& config,
                                            const std::string& source) {
  FitCheck check(config, source);
  for (const Document& object : objects) {
    for (const Document* pod_template : MakePodTemplates(object)) {
      if (const Document* pod = Find(*pod_template, "/spec")) check.CheckPod(*pod);
    }
  }
  for (const Document& object : objects) check.CheckCertificate(object);
  return check.Take();
}

}  // namespace syncopate::k8s
