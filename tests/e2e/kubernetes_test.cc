// The manifests of the demo, rendered by `syncopate k8s render`, are carried out on this machine.

#include <signal.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_cluster.h"

namespace syncopate::testing::kubernetes_test {
namespace {

using ::testing::HasSubstr;

// A run in pods takes as long as a run without pods; the rest of the limit is for a busy machine.
constexpr absl::Duration kWholeRun = absl::Seconds(180);
// The exit code of a pod that was told to stop before the run was complete: its Job starts another pod.
constexpr int kInterrupted = 143;

Json ReadJson(const std::string& path) { return Json::parse(std::ifstream(path), nullptr, /*allow_exceptions=*/false); }

std::string FileText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

int64_t MakeLines(const std::string& path) {
  std::ifstream file(path);
  return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
}

class KubernetesTest : public ::testing::Test {
 protected:
  // Renders the manifests of cpu-demo with a configuration of the test's own.
  void Render(const std::string& more_config = "", const std::string& infra = "",
              const std::vector<k8s::Document>& more_objects = {}) {
    RenderText(FileText(ExamplePath("reverse.yaml")) + more_config, infra, more_objects);
  }

  // Renders a run whose rollouters have `ranks` ranks, for `steps` steps.
  void RenderOfRanks(int ranks, int steps) {
    const std::string with_ranks = absl::StrCat("\nrollout:\n  tensor_parallel: ", ranks, "\n");
    RenderText(absl::StrReplaceAll(FileText(ExamplePath("reverse.yaml")),
                                   {{"\nrollout:\n", with_ranks}, {"steps: 150", absl::StrCat("steps: ", steps)}}),
               "", {});
  }

  void RenderText(const std::string& config, const std::string& infra, const std::vector<k8s::Document>& more_objects) {
    std::ofstream(temp_.path() + "/run.yaml") << config;
    std::ofstream(temp_.path() + "/infra.yaml") << infra;
    auto rendered = RunCommand("syncopate", {"k8s", "render", temp_.path() + "/run.yaml", "--overlay", "cpu-demo",
                                             "--infra", temp_.path() + "/infra.yaml"});
    ASSERT_THAT(rendered, IsOk());
    ASSERT_EQ(rendered->code, 0) << rendered->output;
    auto objects = k8s::ParseDocuments(rendered->output, "rendered");
    ASSERT_THAT(objects, IsOk());
    objects->insert(objects->end(), more_objects.begin(), more_objects.end());
    auto cluster = TestCluster::Create(*objects, temp_.path());
    if (ErrorReason(cluster.status()) == "NO_NAMESPACES") GTEST_SKIP() << cluster.status().message();
    ASSERT_THAT(cluster, IsOk());
    cluster_ = *std::move(cluster);
  }

  // Makes Secrets from the files of scripts/make-certs.sh, as deploy/kustomize/components/mtls/create-secrets.sh does.
  static std::vector<k8s::Document> GetSecrets(const std::string& folder) {
    std::vector<k8s::Document> secrets;
    for (const std::string role : {"synchronizer", "trainer", "rollouter"}) {
      const k8s::Document files = {{"tls.crt", FileText(absl::StrCat(folder, "/", role, ".crt"))},
                                   {"tls.key", FileText(absl::StrCat(folder, "/", role, ".key"))},
                                   {"ca.crt", FileText(folder + "/ca.crt")}};
      secrets.push_back({{"kind", "Secret"}, {"metadata", {{"name", role + "-tls"}}}, {"stringData", files}});
    }
    return secrets;
  }

  // Expects that every pod was ready, was never due for a restart and has ended with 0, and that the run is complete.
  void ExpectAllDone() {
    for (const auto& pod : cluster_->pods()) {
      auto ended = pod->process->WaitExit(absl::ZeroDuration());
      ASSERT_THAT(ended, IsOk()) << pod->name;
      EXPECT_EQ(*ended, ExitStatus{}) << pod->name << "\n" << pod->process->Log();
      EXPECT_TRUE(pod->was_ready) << pod->name << ": " << pod->readiness.last_answer();
      EXPECT_FALSE(pod->would_be_restarted) << pod->name << ": " << pod->liveness.last_answer();
    }
    EXPECT_EQ(Summary().value("status", ""), "completed") << Summary();
  }

  std::vector<TestPod*> MakePods(const std::string& role) const {
    std::vector<TestPod*> pods;
    for (const auto& pod : cluster_->pods()) {
      if (pod->role == role) pods.push_back(pod.get());
    }
    return pods;
  }

  std::string Logs() const {
    std::string logs;
    for (const auto& pod : cluster_->pods()) absl::StrAppend(&logs, "== ", pod->name, "\n", pod->process->Log());
    return logs;
  }

  static bool HasEnded(const std::vector<TestPod*>& pods) {
    return std::none_of(pods.begin(), pods.end(), [](const TestPod* pod) { return pod->process->Running(); });
  }

  bool AllHaveEnded() const {
    return std::none_of(cluster_->pods().begin(), cluster_->pods().end(),
                        [](const auto& pod) { return pod->process->Running(); });
  }

  bool AllAreReady() const {
    return std::all_of(cluster_->pods().begin(), cluster_->pods().end(),
                       [](const auto& pod) { return !pod->process->Running() || pod->readiness.passed(); });
  }

  int64_t StepsRecorded() const { return MakeLines(cluster_->ClaimFolder("trainer") + "/metrics.jsonl"); }

  Json Summary() const { return ReadJson(cluster_->ClaimFolder("trainer") + "/summary.json"); }

  TempDir temp_;
  std::unique_ptr<TestCluster> cluster_;  // destroyed before the folder
};

TEST_F(KubernetesTest, TheDemoRunsToItsEndAsItsManifestsSayAndEveryPodEndsDone) {
  Render();
  if (cluster_ == nullptr) return;
  ASSERT_THAT(cluster_->StartAll(), IsOk());
  EXPECT_TRUE(cluster_->ProbeUntil(kWholeRun, [&] { return AllHaveEnded(); })) << Logs();
  ExpectAllDone();
}

TEST_F(KubernetesTest, ATrainerOfTwoRanksIsTwoPodsThatFindEachOtherAndShareOneVolume) {
  Render("\ntrainer: {world: 2}\n");
  if (cluster_ == nullptr) return;
  ASSERT_THAT(cluster_->StartAll(), IsOk());
  ASSERT_EQ(MakePods("trainer").size(), 2u);
  EXPECT_TRUE(cluster_->ProbeUntil(kWholeRun, [&] { return AllHaveEnded(); })) << Logs();
  ExpectAllDone();
  EXPECT_THAT(MakePods("trainer")[1]->process->Log(), HasSubstr("trainer rank 1 of run"));
}

// The processes of a pod that are this rank of its rollouter, as the node sees them.
pid_t PidOfRank(const TestPod& pod, int rank) {
  const auto ours = ProcessesNaming(absl::StrCat("rollouter.name=", pod.name));
  for (pid_t pid : ProcessesNaming(absl::StrCat("rollouter.rank=", rank))) {
    if (std::find(ours.begin(), ours.end(), pid) != ours.end()) return pid;
  }
  return 0;
}

TEST_F(KubernetesTest, TheRanksOfARolloutersReplicaShareItsContainerAndEndWithTheRun) {
  RenderOfRanks(2, /*steps=*/60);
  if (cluster_ == nullptr) return;
  ASSERT_THAT(cluster_->StartAll(), IsOk());
  EXPECT_TRUE(cluster_->ProbeUntil(kWholeRun, [&] { return AllHaveEnded(); })) << Logs();
  ExpectAllDone();
  for (const TestPod* pod : MakePods("rollouter")) {
    EXPECT_THAT(pod->process->Log(), HasSubstr(absl::StrCat("rank 1 of ", pod->name, " attends rank 0"))) << Logs();
  }
}

TEST_F(KubernetesTest, ALostRankEndsItsContainerWithin10SecondsAndItsSuccessorWorks) {
  RenderOfRanks(2, /*steps=*/100000);
  if (cluster_ == nullptr) return;
  ASSERT_THAT(cluster_->StartAll(), IsOk());
  ASSERT_TRUE(cluster_->ProbeUntil(kWholeRun, [&] { return AllAreReady() && StepsRecorded() > 5; })) << Logs();
  int rank = 1;
  for (const int signal : {SIGKILL, SIGSTOP}) {
    TestPod* const pod = MakePods("rollouter").back();
    const pid_t victim = PidOfRank(*pod, rank);
    ASSERT_GT(victim, 0) << Logs();
    const absl::Time begin = Clock::Real()->Now();
    ASSERT_EQ(::kill(victim, signal), 0);
    ASSERT_TRUE(cluster_->ProbeUntil(absl::Seconds(15), [&] { return !pod->process->Running(); })) << Logs();
    EXPECT_LT(Clock::Real()->Now() - begin, absl::Seconds(10));
    auto end = pod->process->WaitExit(absl::ZeroDuration());
    ASSERT_THAT(end, IsOk());
    EXPECT_EQ(end->code, 4) << pod->process->Log();
    ASSERT_THAT(cluster_->StartPod("rollouter"), IsOk());
    ASSERT_TRUE(cluster_->ProbeUntil(kWholeRun, [&] { return AllAreReady(); })) << Logs();
    rank = 1 - rank;
  }
  // A replica that is told to stop hands its work back, which needs both of its ranks.
  TestPod* const last = MakePods("rollouter").back();
  auto end = cluster_->Terminate(last);
  ASSERT_THAT(end, IsOk());
  EXPECT_EQ(end->code, kInterrupted) << last->process->Log();
}

TEST_F(KubernetesTest, TheDemoRunsOverMutualTlsWithTheSecretsThatTheComponentMounts) {
  const std::string certs = temp_.path() + "/certs";
  auto made = Process::Start({.program = SYNCOPATE_SOURCE_DIR "/scripts/make-certs.sh",
                              .args = {certs},
                              .log_path = temp_.path() + "/make-certs.log"});
  ASSERT_THAT(made, IsOk());
  ASSERT_THAT((*made)->WaitExit(kPatience), IsOk());
  Render("", "components: [mtls]", GetSecrets(certs));
  if (cluster_ == nullptr) return;
  ASSERT_THAT(cluster_->StartAll(), IsOk());
  EXPECT_TRUE(cluster_->ProbeUntil(kWholeRun, [&] { return AllHaveEnded(); })) << Logs();
  ExpectAllDone();
}

TEST_F(KubernetesTest, PodsThatAreToldToStopEndWithinTheirGraceAndTheirSuccessorsFinishTheRun) {
  Render("\ncheckpoint: {every_steps: 20}\n");
  if (cluster_ == nullptr) return;
  ASSERT_THAT(cluster_->StartAll(), IsOk());
  ASSERT_TRUE(cluster_->ProbeUntil(kWholeRun, [&] { return AllAreReady() && StepsRecorded() > 10; })) << Logs();

  TestPod* rollouter = MakePods("rollouter")[0];
  auto rollouter_end = cluster_->Terminate(rollouter);
  ASSERT_THAT(rollouter_end, IsOk());
  EXPECT_EQ(rollouter_end->code, kInterrupted) << rollouter->process->Log();
  ASSERT_THAT(cluster_->StartPod("rollouter"), IsOk());

  TestPod* trainer = MakePods("trainer")[0];
  auto trainer_end = cluster_->Terminate(trainer);
  ASSERT_THAT(trainer_end, IsOk());
  EXPECT_EQ(trainer_end->code, kInterrupted) << trainer->process->Log();
  const int64_t steps = StepsRecorded();
  ASSERT_LT(steps, 150) << "the run was over before its trainer was told to stop";
  auto successor = cluster_->StartPod("trainer");
  ASSERT_THAT(successor, IsOk());

  EXPECT_TRUE(cluster_->ProbeUntil(kWholeRun, [&] { return AllHaveEnded(); })) << Logs();
  auto end = (*successor)->process->WaitExit(absl::ZeroDuration());
  ASSERT_THAT(end, IsOk());
  EXPECT_EQ(*end, ExitStatus{}) << (*successor)->process->Log();
  EXPECT_EQ(Summary().value("status", ""), "completed") << Summary();
}

}  // namespace
}  // namespace syncopate::testing::kubernetes_test
