#include "tools/k8s/fit.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncopate::k8s {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// One workload of a role with these arguments and limits.
Document Workload(const std::string& role, const std::string& arguments, const std::string& limits = "{}") {
  return ParseDocument(
             "{kind: Deployment, spec: {template: {spec: {terminationGracePeriodSeconds: 60, containers: "
             "[{name: " +
                 role + ", args: [" + arguments + "], resources: {limits: " + limits + "}}]}}}}",
             "test")
      .value();
}

std::string Problems(const Objects& objects, const std::string& config) {
  return config::ToString(CheckFit(objects, config, "run.yaml"));
}

TEST(FitTest, ArgumentsMustBeSettingsOfTheDaemon) {
  EXPECT_THAT(Problems({Workload("rollouter", "/etc/run.yaml, run.grase=1s")}, ""), HasSubstr("run.grase"));
  EXPECT_THAT(Problems({Workload("rollouter", "/etc/run.yaml, run.grace=1s, --exit-on-completion")}, ""), IsEmpty());
}

TEST(FitTest, AWrongConfigurationIsSaidOnceHoweverManyRolesHaveIt) {
  const std::string said =
      Problems({Workload("trainer", "a.yaml"), Workload("rollouter", "a.yaml")}, "run: {stepps: 1}");
  EXPECT_THAT(said, HasSubstr("run.stepps"));
  EXPECT_EQ(said.find("run.stepps"), said.rfind("run.stepps"));
}

TEST(FitTest, AGpuThatNobodyUsesIsRefused) {
  EXPECT_THAT(Problems({Workload("trainer", "a.yaml", "{nvidia.com/gpu: 1}")}, ""), HasSubstr("train.device = cpu"));
}

TEST(FitTest, ADeviceThatIsNotAskedForIsRefused) {
  EXPECT_THAT(Problems({Workload("rollouter", "a.yaml")}, "rollout: {device: 'cuda:0'}"), HasSubstr("rollouter.gpus"));
}

TEST(FitTest, AGraceLongerThanThePodLivesIsRefused) {
  EXPECT_THAT(Problems({Workload("rollouter", "a.yaml, run.grace=60s")}, ""), HasSubstr("run.grace"));
}

TEST(FitTest, PodsShareNoGpuMemory) {
  EXPECT_THAT(Problems({Workload("trainer", "a.yaml", "{nvidia.com/gpu: 1}")},
                       "train: {device: 'cuda:0'}\nsync: {transport: ipc}"),
              HasSubstr("sync.transport"));
}

TEST(FitTest, PodsInsideCustomObjectsAreLookedAtToo) {
  Document jobs = ParseDocument("{kind: JobSet, spec: {replicatedJobs: [{template: {spec: {}}}]}}", "test").value();
  jobs["spec"]["replicatedJobs"][0]["template"]["spec"]["template"] =
      Workload("trainer", "a, run.x=1")["spec"]["template"];
  EXPECT_THAT(Problems({jobs}, ""), HasSubstr("run.x"));
}

}  // namespace
}  // namespace syncopate::k8s
