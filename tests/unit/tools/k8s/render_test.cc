#include "tools/k8s/render.h"

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/k8s/fit.h"

namespace syncopate::k8s {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

std::string FileText(const std::string& path) {
  std::ifstream file(absl::StrCat(SYNCOPATE_SOURCE_DIR, "/", path));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

RenderRequest DemoRequest(const std::string& infra = "") {
  return {FileText("deploy/examples/reverse.yaml"), "reverse.yaml", Infra::Parse(infra, "infra.yaml").value(),
          "cpu-demo"};
}

RenderRequest GpuRequest(const std::string& overlay, const std::string& infra = "") {
  return {FileText(absl::StrCat("deploy/kustomize/overlays/", overlay, "/run.yaml")), "run.yaml",
          Infra::Parse(infra, "infra.yaml").value(), overlay};
}

constexpr char kFourRanks[] = "\nrollout:\n  device: cuda\n  tensor_parallel: 4\n";

const Document* Find(const Objects& objects, const std::string& name) {
  for (const Document& object : objects) {
    if (GetName(object) == name) return &object;
  }
  return nullptr;
}

absl::StatusOr<Rendered> Rendering(const FileTree& tree, const RenderRequest& request) {
  return Render(tree, request, Kubectl());
}

std::string Refusal(const RenderRequest& request) {
  return std::string(Rendering(DeployTree(), request).status().message());
}

class RenderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const FileTree empty = {{"kustomization.yaml", "resources: []\n"}};
    if (ErrorReason(Kubectl().Kustomize(empty, ".").status()) == "NO_KUBECTL") {
      GTEST_SKIP() << "there is no kubectl; scripts/bootstrap.sh --tests installs it";
    }
  }
};

TEST_F(RenderTest, EveryOverlayRendersWithTheConfigurationThatItComesWith) {
  for (const std::string& overlay : MakeOverlays(DeployTree())) {
    auto rendered = Rendering(DeployTree(), overlay == "cpu-demo" ? DemoRequest() : GpuRequest(overlay));
    EXPECT_TRUE(rendered.ok()) << overlay << ": " << rendered.status();
  }
}

TEST_F(RenderTest, TheConfigurationIsMountedAsItWasWritten) {
  auto rendered = Rendering(DeployTree(), DemoRequest());
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  for (const Document& object : rendered->objects) {
    if (Text(object, {"metadata", "name"}).rfind("syncopate-config-", 0) != 0) continue;
    EXPECT_EQ(Text(object, {"data", "run.yaml"}), FileText("deploy/examples/reverse.yaml"));
    return;
  }
  FAIL() << "no ConfigMap of the configuration";
}

std::string MountedConfig(const Objects& objects) {
  for (const Document& object : objects) {
    if (Text(object, {"metadata", "name"}).rfind("syncopate-config-", 0) == 0)
      return Text(object, {"data", "run.yaml"});
  }
  return "";
}

TEST_F(RenderTest, DevicesThatAreLeftToUsAreThoseThatThePodsAskFor) {
  const std::string small = "model: {path: /var/lib/syncopate/model, context_length: 64}\nrun: {steps: 3}\n";
  RenderRequest request = GpuRequest("multi-node");
  request.config = small;
  auto on_gpus = Rendering(DeployTree(), request);
  ASSERT_TRUE(on_gpus.ok()) << on_gpus.status();
  EXPECT_THAT(MountedConfig(on_gpus->objects),
              AllOf(HasSubstr("device: \"cuda\""), Not(HasSubstr("device: \"cpu\"")), Not(HasSubstr("auto: ")),
                    HasSubstr("learning_rate: 1.0e-06"), HasSubstr("max_new_tokens: 0"), HasSubstr("steps: 3")));
  request = DemoRequest();
  request.config = small;
  auto on_cpus = Rendering(DeployTree(), request);
  ASSERT_TRUE(on_cpus.ok()) << on_cpus.status();
  EXPECT_THAT(MountedConfig(on_cpus->objects), AllOf(HasSubstr("device: \"cpu\""), Not(HasSubstr("\"cuda\""))));
}

TEST_F(RenderTest, EveryValueOfTheInfraFileArrives) {
  auto rendered = Rendering(
      DeployTree(),
      DemoRequest(
          "namespace: rl\ninstance: first\nimage: r.example:5000/s:9\nimage_pull_secrets: [pull]\npriority_class: "
          "high\n"
          "storage_class: fast\ngrace: 100s\nnccl: {NCCL_DEBUG: INFO}\n"
          "rollouter: {replicas: 5, cpu: 3, memory: 7Gi, shm: 1Gi, node_selector: {pool: a}, tolerations: [{key: k}]}\n"
          "trainer: {storage: 30Gi}\n"));
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  const Document* job = Find(rendered->objects, "Job/rollouter");
  ASSERT_NE(job, nullptr);
  const Document& spec = (*job)["spec"];
  const Document& pod = spec["template"]["spec"];
  const Document& container = pod["containers"][0];
  EXPECT_EQ(Text(*job, {"metadata", "namespace"}), "rl");
  EXPECT_EQ(Text(spec["template"], {"metadata", "labels", "app.kubernetes.io/instance"}), "first");
  EXPECT_EQ(container["image"], "r.example:5000/s:9");
  EXPECT_EQ(pod["imagePullSecrets"][0]["name"], "pull");
  EXPECT_EQ(pod["priorityClassName"], "high");
  EXPECT_EQ(pod["terminationGracePeriodSeconds"], 115);
  EXPECT_EQ(container["args"].back(), "run.grace=100s");
  EXPECT_EQ(spec["completions"], 5);
  EXPECT_EQ(spec["parallelism"], 5);
  EXPECT_EQ(container["resources"],
            Document({{"requests", {{"cpu", "3"}, {"memory", "7Gi"}}}, {"limits", {{"memory", "7Gi"}}}}));
  EXPECT_EQ(pod["volumes"][1], Document({{"name", "shm"}, {"emptyDir", {{"medium", "Memory"}, {"sizeLimit", "1Gi"}}}}));
  EXPECT_EQ(pod["nodeSelector"]["pool"], "a");
  EXPECT_EQ(pod["tolerations"][0]["key"], "k");
  const Document* claim = Find(rendered->objects, "PersistentVolumeClaim/trainer-state");
  ASSERT_NE(claim, nullptr);
  EXPECT_EQ((*claim)["spec"]["storageClassName"], "fast");
  EXPECT_EQ((*claim)["spec"]["resources"]["requests"]["storage"], "30Gi");
  EXPECT_NE(Find(rendered->objects, "Namespace/rl"), nullptr);
}

TEST_F(RenderTest, ATrainerOfSeveralRanksIsAPodEachWithOneVolumeForAll) {
  RenderRequest request = GpuRequest("multi-node", "storage_class: nfs\ntrainer: {storage: 2Ti}\n");
  request.config += "\ntrainer: {world: 4}\n";
  auto rendered = Rendering(DeployTree(), request);
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  const Document* set = Find(rendered->objects, "StatefulSet/trainer");
  ASSERT_NE(set, nullptr);
  const Document& spec = (*set)["spec"];
  EXPECT_EQ(spec["replicas"], 4);
  EXPECT_EQ(spec["podManagementPolicy"], "Parallel");
  EXPECT_EQ(spec["serviceName"], "trainer");
  EXPECT_FALSE(spec.contains("volumeClaimTemplates"));
  const Document& container = spec["template"]["spec"]["containers"][0];
  EXPECT_EQ(container["resources"]["limits"]["nvidia.com/gpu"], 1);
  EXPECT_THAT(container["args"], ::testing::Contains(Document("trainer.rank0=trainer-0.trainer:7070")));
  EXPECT_THAT(container["args"], ::testing::Contains(Document("trainer.ranks_listen=0.0.0.0:7073")));
  EXPECT_THAT(container["ports"], ::testing::Contains(Document({{"name", "ranks"}, {"containerPort", 7073}})));
  const Document& close = spec["template"]["spec"]["affinity"]["podAffinity"];
  EXPECT_EQ(close["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"]["topologyKey"],
            "kubernetes.io/hostname");
  EXPECT_EQ(
      container["env"].back(),
      Document({{"name", "RANK"},
                {"valueFrom", {{"fieldRef", {{"fieldPath", "metadata.labels['apps.kubernetes.io/pod-index']"}}}}}}));
  EXPECT_EQ(spec["template"]["spec"]["volumes"].back()["persistentVolumeClaim"]["claimName"], "trainer-state");
  const Document* claim = Find(rendered->objects, "PersistentVolumeClaim/trainer-state");
  ASSERT_NE(claim, nullptr);
  EXPECT_EQ((*claim)["spec"]["accessModes"], Document::array({"ReadWriteMany"}));
  EXPECT_EQ((*claim)["spec"]["resources"]["requests"]["storage"], "2Ti");
  EXPECT_EQ((*claim)["spec"]["storageClassName"], "nfs");
  const Document* service = Find(rendered->objects, "Service/trainer");
  ASSERT_NE(service, nullptr);
  EXPECT_EQ((*service)["spec"]["clusterIP"], "None");
  EXPECT_EQ((*service)["spec"]["publishNotReadyAddresses"], true);
}

TEST_F(RenderTest, TheRanksOfARolloutersReplicaAreInOneContainerWithAGpuEach) {
  RenderRequest request = GpuRequest("multi-node", "rollouter: {replicas: 3, shm: 32Gi}");
  request.config = absl::StrReplaceAll(request.config, {{"\nrollout:\n  device: cuda:0\n", kFourRanks}});
  auto rendered = Rendering(DeployTree(), request);
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  const Document* deployment = Find(rendered->objects, "Deployment/rollouter");
  ASSERT_NE(deployment, nullptr);
  EXPECT_EQ((*deployment)["spec"]["replicas"], 3);
  const Document& pod = (*deployment)["spec"]["template"]["spec"];
  ASSERT_EQ(pod["containers"].size(), 1u);
  const Document& container = pod["containers"][0];
  EXPECT_EQ(container["name"], "rollouter");
  EXPECT_EQ(container["command"], Document::array({"/usr/bin/syncopate", "replica"}));
  EXPECT_EQ(container["args"][0], "/etc/syncopate/run.yaml");
  EXPECT_EQ(container["resources"]["limits"]["nvidia.com/gpu"], 4);
  // Rank 0 answers for all ranks: the probes do not change.
  EXPECT_EQ(container["livenessProbe"]["httpGet"]["port"], "metrics");
  const Document* trainer = Find(rendered->objects, "StatefulSet/trainer");
  ASSERT_NE(trainer, nullptr);
  EXPECT_EQ((*trainer)["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"], 1);
}

TEST_F(RenderTest, ARolloutersReplicaOnCpusAsksForNoGpu) {
  RenderRequest request = DemoRequest();
  request.config = absl::StrReplaceAll(request.config, {{"\nrollout:\n", "\nrollout:\n  tensor_parallel: 2\n"}});
  auto rendered = Rendering(DeployTree(), request);
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  const Document* job = Find(rendered->objects, "Job/rollouter");
  ASSERT_NE(job, nullptr);
  const Document& container = (*job)["spec"]["template"]["spec"]["containers"][0];
  EXPECT_EQ(container["command"], Document::array({"/usr/bin/syncopate", "replica"}));
  EXPECT_FALSE(container["resources"]["limits"].contains("nvidia.com/gpu"));
}

TEST_F(RenderTest, AnotherNumberOfGpusThanRanksIsRefusedWithBoth) {
  RenderRequest request = GpuRequest("multi-node", "rollouter: {gpus: 2}");
  request.config = absl::StrReplaceAll(request.config, {{"\nrollout:\n  device: cuda:0\n", kFourRanks}});
  auto rendered = Rendering(DeployTree(), request);
  ASSERT_FALSE(rendered.ok());
  EXPECT_THAT(std::string(rendered.status().message()), ::testing::HasSubstr("rollout.tensor_parallel"));
  EXPECT_THAT(std::string(rendered.status().message()), ::testing::HasSubstr("rollouter.gpus in the infra file is 2"));
}

TEST_F(RenderTest, ATrainerOfSeveralRanksThatIsAJobHasAnIndexForEach) {
  RenderRequest request = DemoRequest();
  request.config += "\ntrainer: {world: 3}\n";
  auto rendered = Rendering(DeployTree(), request);
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  const Document* job = Find(rendered->objects, "Job/trainer");
  ASSERT_NE(job, nullptr);
  EXPECT_EQ((*job)["spec"]["completions"], 3);
  EXPECT_EQ((*job)["spec"]["parallelism"], 3);
  EXPECT_EQ((*job)["spec"]["completionMode"], "Indexed");
  const Document& container = (*job)["spec"]["template"]["spec"]["containers"][0];
  EXPECT_EQ(container["env"].back()["name"], "RANK");
  EXPECT_THAT(container["args"], ::testing::Contains(Document("trainer.rank0=trainer-0.trainer:7070")));
  const Document* claim = Find(rendered->objects, "PersistentVolumeClaim/trainer-state");
  ASSERT_NE(claim, nullptr);
  EXPECT_EQ((*claim)["spec"]["accessModes"], Document::array({"ReadWriteMany"}));
}

constexpr char kOwnModel[] =
    "\nmodel: {path: /models/m}\ndata: {files: [/data/a.jsonl]}\nreward: {name: 'python:short'}\n"
    "environment: {command: syncopate-worker /data/rewards.py}\n";

TEST_F(RenderTest, ClaimsAreMountedWhereTheRunReadsThemAndTheWorkerRunsTheCommand) {
  RenderRequest request = DemoRequest(
      "components: [environment]\nenvironment: {image: r.example/worker:7}\n"
      "volumes: [{claim: models, path: /models, read_only: true}, {claim: sets, path: /data}]\n");
  request.config = kOwnModel;
  auto rendered = Rendering(DeployTree(), request);
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  for (const std::string role : {"trainer", "rollouter"}) {
    const Document* job = Find(rendered->objects, "Job/" + role);
    ASSERT_NE(job, nullptr);
    const Document& pod = (*job)["spec"]["template"]["spec"];
    EXPECT_THAT(pod["volumes"],
                Contains(Document(
                    {{"name", "claim-0"}, {"persistentVolumeClaim", {{"claimName", "models"}, {"readOnly", true}}}})));
    const Document& mounts = pod["containers"][0]["volumeMounts"];
    EXPECT_THAT(mounts, Contains(Document({{"name", "claim-0"}, {"mountPath", "/models"}, {"readOnly", true}})));
    EXPECT_THAT(mounts, Contains(Document({{"name", "claim-1"}, {"mountPath", "/data"}, {"readOnly", false}})));
  }
  const Document* job = Find(rendered->objects, "Job/rollouter");
  const Document& worker = (*job)["spec"]["template"]["spec"]["initContainers"][0];
  EXPECT_EQ(worker["image"], "r.example/worker:7");
  EXPECT_EQ(worker["command"],
            Document::array({"/bin/sh", "-c", "exec syncopate-worker /data/rewards.py \"$@\"", "sh"}));
  EXPECT_EQ(worker["args"], Document::array({"--listen", "unix:/run/syncopate/worker.sock"}));
  EXPECT_THAT(worker["volumeMounts"],
              Contains(Document({{"name", "claim-1"}, {"mountPath", "/data"}, {"readOnly", false}})));
  const Document* synchronizer = Find(rendered->objects, "Job/synchronizer");
  ASSERT_NE(synchronizer, nullptr);
  EXPECT_THAT(synchronizer->dump(), Not(HasSubstr("claim-0")));
}

TEST_F(RenderTest, PathsUnderNoMountAreRefused) {
  RenderRequest request = DemoRequest("components: [environment]\nvolumes: [{claim: models, path: /models}]\n");
  request.config = kOwnModel;
  const absl::Status refused = Rendering(DeployTree(), request).status();
  EXPECT_EQ(ErrorReason(refused), "BAD_CONFIG");
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("data.files = /data/a.jsonl"), HasSubstr("/models")));
  EXPECT_THAT(std::string(refused.message()), Not(HasSubstr("model.path")));
}

TEST_F(RenderTest, AWorkerWithoutItsComponentIsRefused) {
  RenderRequest request = DemoRequest("environment: {image: r.example/worker:7}");
  request.config = "environment: {command: syncopate-worker rewards.py}";
  EXPECT_THAT(Refusal(request), AllOf(HasSubstr("environment.image"), HasSubstr("environment.command"),
                                      HasSubstr("components: [environment]"), HasSubstr("components: [workers]")));
}

// A run whose samples are played in an environment in Python.
constexpr char kPlayed[] =
    "\nmodel: {path: /models/m}\ndata: {files: [/data/a.jsonl]}\nreward: {name: environment}\n"
    "environment: {name: guess_number, command: syncopate-worker /data/guess_number.py}\n"
    "rollout: {max_new_tokens: 64, max_total_tokens: 1024}\n";
constexpr char kVolumes[] = "volumes: [{claim: models, path: /models, read_only: true}, {claim: sets, path: /data}]\n";

TEST_F(RenderTest, RowsThatArePlayedGetWorkersWithPodsOfTheirOwn) {
  RenderRequest request = DemoRequest(absl::StrCat(
      kVolumes,
      "instance: first\ngrace: 100s\n"
      "environment: {image: 'r.example/worker:7', replicas: 3, cpu: 2, memory: 8Gi, node_selector: {pool: a}}\n"));
  request.config = kPlayed;
  auto rendered = Rendering(DeployTree(), request);
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  const Document* deployment = Find(rendered->objects, "Deployment/environment");
  ASSERT_NE(deployment, nullptr);
  EXPECT_EQ((*deployment)["spec"]["replicas"], 3);
  EXPECT_EQ(Text(*deployment, {"metadata", "labels", "app.kubernetes.io/instance"}), "first");
  const Document& pod = (*deployment)["spec"]["template"]["spec"];
  EXPECT_EQ(pod["nodeSelector"]["pool"], "a");
  const Document& worker = pod["containers"][0];
  EXPECT_EQ(worker["image"], "r.example/worker:7");
  EXPECT_EQ(worker["command"],
            Document::array({"/bin/sh", "-c", "exec syncopate-worker /data/guess_number.py \"$@\"", "sh"}));
  // Not a daemon's: a worker would take run.grace=100s for a file of Python.
  EXPECT_EQ(worker["args"], Document::array({"--listen", "0.0.0.0:7070", "--insecure-bind"}));
  EXPECT_EQ(worker["resources"]["requests"], Document({{"cpu", "2"}, {"memory", "8Gi"}}));
  EXPECT_THAT(worker["volumeMounts"],
              Contains(Document({{"name", "claim-1"}, {"mountPath", "/data"}, {"readOnly", false}})));
  EXPECT_NE(Find(rendered->objects, "Service/environment"), nullptr);
  const Document* rollouter = Find(rendered->objects, "Job/rollouter");
  ASSERT_NE(rollouter, nullptr);
  const Document& rollouter_pod = (*rollouter)["spec"]["template"]["spec"];
  EXPECT_FALSE(rollouter_pod.contains("initContainers"));
  EXPECT_THAT(rollouter_pod["containers"][0]["args"], Contains(Document("environment.address=environment:7070")));
}

TEST_F(RenderTest, AWorkerBesideEachRollouterStaysAChoiceForRowsThatArePlayed) {
  RenderRequest request = DemoRequest(absl::StrCat(kVolumes, "components: [environment]\n"));
  request.config = kPlayed;
  auto rendered = Rendering(DeployTree(), request);
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_EQ(Find(rendered->objects, "Deployment/environment"), nullptr);
  request = DemoRequest(absl::StrCat(kVolumes, "components: [environment, workers]\n"));
  request.config = kPlayed;
  EXPECT_THAT(Refusal(request), HasSubstr("components = environment, workers: expected one of them"));
  request = DemoRequest(absl::StrCat(kVolumes, "components: [environment]\nenvironment: {replicas: 3}\n"));
  request.config = kPlayed;
  EXPECT_THAT(Refusal(request), HasSubstr("environment.replicas"));
}

TEST_F(RenderTest, WhatIsBuiltInIsPlayedWithoutWorkers) {
  RenderRequest request = DemoRequest();
  request.config =
      "run: {steps: 2}\nmodel: {max_position_embeddings: 34}\ndata: {task: guess}\nenvironment: {name: guess}\n"
      "reward: {name: environment}\nrollout: {max_turns: 8, max_total_tokens: 32}\n";
  auto rendered = Rendering(DeployTree(), request);
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_EQ(Find(rendered->objects, "Deployment/environment"), nullptr);
}

TEST_F(RenderTest, WorkersSpeakMutualTlsWhereTheRunDoesAndScaleWithWhatIsParkedAndQueued) {
  RenderRequest request = GpuRequest("multi-node", absl::StrCat(kVolumes, "components: [keda]\n"));
  request.config = kPlayed;
  auto rendered = Rendering(DeployTree(), request);
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  const Document* deployment = Find(rendered->objects, "Deployment/environment");
  ASSERT_NE(deployment, nullptr);
  const Document& pod = (*deployment)["spec"]["template"]["spec"];
  EXPECT_EQ(pod["containers"][0]["args"],
            Document::array({"--listen", "0.0.0.0:7070", "--tls-cert=/etc/syncopate/tls/tls.crt",
                             "--tls-key=/etc/syncopate/tls/tls.key", "--tls-ca=/etc/syncopate/tls/ca.crt",
                             "--trust-domain", "syncopate"}));
  const Document* certificate = Find(rendered->objects, "Certificate/environment-tls");
  ASSERT_NE(certificate, nullptr);
  EXPECT_EQ((*certificate)["spec"]["uris"], Document::array({"spiffe://syncopate/role/environment"}));
  EXPECT_THAT(pod["volumes"].dump(), HasSubstr("\"secretName\":\"environment-tls\""));
  const Document* scaled = Find(rendered->objects, "ScaledObject/environment");
  ASSERT_NE(scaled, nullptr);
  EXPECT_EQ(Text(*scaled, {"spec", "scaleTargetRef", "name"}), "environment");
  EXPECT_THAT(scaled->dump(), AllOf(HasSubstr("syncopate_parked_sequences"), HasSubstr("vllm:num_requests_waiting")));
  EXPECT_NE(Find(rendered->objects, "ScaledObject/rollouter"), nullptr);
}

TEST_F(RenderTest, TheGatewayBringsTheEndpointsAndNeedsTokens) {
  RenderRequest request = DemoRequest("components: [token, gateway]\nimage: r.example/s:9\ngateway: {replicas: 4}\n");
  auto rendered = Rendering(DeployTree(), request);
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  const Document* gateway = Find(rendered->objects, "Deployment/gateway");
  ASSERT_NE(gateway, nullptr);
  EXPECT_EQ((*gateway)["spec"]["replicas"], 4);
  const Document& container = (*gateway)["spec"]["template"]["spec"]["containers"][0];
  EXPECT_EQ(container["image"], "r.example/s:9");
  EXPECT_EQ(container["command"], Document::array({"/usr/bin/syncopate", "gateway"}));
  const Document* rollouter = Find(rendered->objects, "Job/rollouter");
  ASSERT_NE(rollouter, nullptr);
  EXPECT_THAT((*rollouter)["spec"]["template"]["spec"]["containers"][0]["args"],
              Contains(Document("endpoint.listen=0.0.0.0:7074")));
  EXPECT_THAT(Refusal(DemoRequest("components: [gateway]\n")), HasSubstr("security.token_file"));
}

TEST_F(RenderTest, ComponentsMayBeNamedInAnyOrder) {
  auto one =
      Rendering(DeployTree(), GpuRequest("multi-node", "components: [kueue, lws, rdma]\nrollouter: {replicas: 3}"));
  auto other =
      Rendering(DeployTree(), GpuRequest("multi-node", "components: [rdma, lws, kueue]\nrollouter: {replicas: 3}"));
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(one->objects, other->objects);
  const Document* groups = Find(one->objects, "LeaderWorkerSet/rollouter");
  ASSERT_NE(groups, nullptr);
  EXPECT_EQ((*groups)["spec"]["replicas"], 3);
  EXPECT_EQ(Text(*groups, {"metadata", "labels", "kueue.x-k8s.io/queue-name"}), "syncopate");
}

TEST_F(RenderTest, AValueThatNothingTakesIsRefusedByName) {
  RenderRequest request = GpuRequest("single-node-8gpu", "synchronizer: {storage: 2Gi}\n");
  EXPECT_TRUE(Rendering(DeployTree(), request).ok());
  FileTree without_claims = DeployTree();  // an overlay without state
  without_claims["kustomize/overlays/single-node-8gpu/kustomization.yaml"] +=
      "  - target: {kind: StatefulSet}\n    patch: |\n      apiVersion: apps/v1\n      kind: StatefulSet\n"
      "      metadata: {name: any}\n      $patch: delete\n";
  const absl::Status refused = Rendering(without_claims, request).status();
  EXPECT_EQ(ErrorReason(refused), "BAD_REQUEST");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("infra.yaml: synchronizer.storage"));
}

TEST_F(RenderTest, UnknownNamesAreRefusedWithTheNearestOnes) {
  RenderRequest request = DemoRequest("components: [moniter]");
  request.overlay = "cpu-dem";
  EXPECT_THAT(Refusal(request), AllOf(HasSubstr("cpu-demo"), HasSubstr("monitoring")));
}

TEST_F(RenderTest, AComponentThatIsThereAlreadyIsRefused) {
  EXPECT_THAT(Refusal(DemoRequest("components: [jobs]")),
              AllOf(HasSubstr("infra.yaml: components"), HasSubstr("cpu-demo has it already")));
}

TEST_F(RenderTest, JobSetNeedsJobs) {
  EXPECT_THAT(Refusal(GpuRequest("multi-node", "components: [jobset]")), HasSubstr("kubectl kustomize"));
}

TEST_F(RenderTest, ACpuConfigurationOnAGpuOverlayIsRefused) {
  RenderRequest request = DemoRequest();
  request.overlay = "multi-node";
  EXPECT_THAT(Refusal(request), AllOf(HasSubstr("train.device"), HasSubstr("rollout.device")));
}

TEST_F(RenderTest, CertificatesAreOfTheTrustDomainThatTheDaemonsLookFor) {
  RenderRequest request = GpuRequest("multi-node");
  request.config += "\nsecurity: {trust_domain: elsewhere}\n";
  EXPECT_THAT(Refusal(request), HasSubstr("security.trust_domain"));
}

}  // namespace
}  // namespace syncopate::k8s
