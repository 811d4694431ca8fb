#include "tools/k8s/fit.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "services/config/duration.h"
#include "services/config/run_config.h"
#include "synchronizer/transport/transport_traits.h"

namespace syncopate::k8s {
namespace {

const Document* Find(const Document& document, const std::string& pointer) {
  const Document::json_pointer path(pointer);
  return document.contains(path) ? &document.at(path) : nullptr;
}

// What Kubernetes puts in place of $(NAME): any value of the right form will do here.
std::string Expanded(const std::string& argument) {
  return absl::StrReplaceAll(argument, {{"$(POD_IP)", "10.0.0.1"}, {"$(POD_NAME)", "rollouter-0"}});
}

class FitCheck {
 public:
  FitCheck(const std::string& config, const std::string& source) : config_(config), source_(source) {}

  void CheckPod(const Document& pod) {
    for (const Document& container : pod.value("containers", Document::array())) {
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
      CheckGrace(pod, parsed.config);
    }
  }

  // SPIFFE ids of certificates begin with the trust domain that the daemons look for.
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
  // The same complaint of several roles is said once.
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
    const auto* transport = synchronizer::FindTransport(config.sync().transport());
    if (transport != nullptr && transport->one_host) {
      Add({source_, "sync.transport", config.sync().transport(), "auto, nccl or grpc: pods do not share GPU memory",
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
  v1::RunConfig last_;  // the latest that was right
  std::vector<config::ConfigProblem> problems_;
};

}  // namespace

std::vector<const Document*> PodTemplatesOf(const Document& object) {
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
    for (const Document* pod_template : PodTemplatesOf(object)) {
      if (const Document* pod = Find(*pod_template, "/spec")) check.CheckPod(*pod);
    }
  }
  for (const Document& object : objects) check.CheckCertificate(object);
  return check.Take();
}

}  // namespace syncopate::k8s
