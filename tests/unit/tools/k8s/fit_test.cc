#include "tools/k8s/fit.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncopate::k8s {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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

TEST(FitTest, APodThatReadsNoConfigurationNeedsNoDevice) {
  const Document worker = Workload("environment", "--listen, '0.0.0.0:7070', --tls-cert=/c");
  EXPECT_THAT(Problems({worker}, "rollout: {device: 'cuda:0'}"), IsEmpty());
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

TEST(FitTest, PodsTakeNoTurnsOnAGpu) {
  EXPECT_THAT(Problems({Workload("trainer", "a.yaml")}, "run: {share_gpu: true}"), HasSubstr("run.share_gpu"));
}

// The trainer with these mounts, such as "{name: v, mountPath: /models}". Volume v is persistent, and volume tmp is
// not.
Document TrainerWithMounts(const std::string& mounts) {
  Document workload = Workload("trainer", "a.yaml");
  Document& pod = workload["spec"]["template"]["spec"];
  pod["volumes"] =
      ParseDocument("[{name: v, persistentVolumeClaim: {claimName: c}}, {name: tmp, emptyDir: {}}]", "test").value();
  pod["containers"][0]["volumeMounts"] = ParseDocument(mounts, "test").value();
  return workload;
}

TEST(FitTest, PathsUnderNoMountAreRefusedEachByItsKey) {
  const std::string config = "model: {path: /models/m}\ndata: {files: ['/data/a.jsonl * 2'], eval_files: [b.jsonl]}\n";
  const std::string said = Problems({TrainerWithMounts("[{name: v, mountPath: /models}]")}, config);
  EXPECT_THAT(said, Not(HasSubstr("model.path")));
  EXPECT_THAT(said,
              HasSubstr("data.files = /data/a.jsonl: expected a path under a mount of the trainer pods (/models)"));
  EXPECT_THAT(said, HasSubstr("data.eval_files = b.jsonl"));
  EXPECT_THAT(said, HasSubstr("`volumes` in the infra file"));
}

TEST(FitTest, TheDirectoryOfAdaptersIsUnderAMountOfTheTrainerAlone) {
  const std::string config = "model: {path: /models/m}\nlora: {path: /adapters/a}\n";
  EXPECT_THAT(Problems({TrainerWithMounts("[{name: v, mountPath: /models}]")}, config),
              HasSubstr("lora.path = /adapters/a: expected a path under a mount of the trainer pods (/models)"));
  EXPECT_THAT(Problems({TrainerWithMounts("[{name: v, mountPath: /models}, {name: v, mountPath: /adapters}]")}, config),
              IsEmpty());
  EXPECT_THAT(Problems({Workload("rollouter", "a.yaml")}, config), IsEmpty());
}

TEST(FitTest, APathThatOnlyBeginsLikeAMountIsUnderNone) {
  const std::string config = "model: {path: /models-old/m}";
  EXPECT_THAT(Problems({TrainerWithMounts("[{name: v, mountPath: /models}]")}, config), HasSubstr("model.path"));
  EXPECT_THAT(Problems({TrainerWithMounts("[{name: v, mountPath: /models-old}]")}, config), IsEmpty());
  EXPECT_THAT(Problems({TrainerWithMounts("[{name: v, mountPath: /models}]")}, "model: {path: /models/../x}"),
              HasSubstr("model.path"));
}

TEST(FitTest, AMountThatBeginsEmptyHoldsNoModel) {
  EXPECT_THAT(Problems({TrainerWithMounts("[{name: tmp, mountPath: /tmp}]")}, "model: {path: /tmp/m}"),
              HasSubstr("there is none"));
}

TEST(FitTest, CheckpointsNeedAMountThatCanBeWritten) {
  const std::string config = "checkpoint: {dir: /kept/here}";
  EXPECT_THAT(Problems({TrainerWithMounts("[{name: v, mountPath: /kept, readOnly: true}]")}, config),
              HasSubstr("a writable mount"));
  EXPECT_THAT(Problems({TrainerWithMounts("[{name: v, mountPath: /kept}]")}, config), IsEmpty());
}

TEST(FitTest, RolloutersNeedNoModelNorFiles) {
  EXPECT_THAT(Problems({Workload("rollouter", "a.yaml")}, "model: {path: /m}\ndata: {files: [/a.jsonl]}"), IsEmpty());
}

TEST(FitTest, PodsInsideCustomObjectsAreLookedAtToo) {
  Document jobs = ParseDocument("{kind: JobSet, spec: {replicatedJobs: [{template: {spec: {}}}]}}", "test").value();
  jobs["spec"]["replicatedJobs"][0]["template"]["spec"]["template"] =
      Workload("trainer", "a, run.x=1")["spec"]["template"];
  EXPECT_THAT(Problems({jobs}, ""), HasSubstr("run.x"));
}

}  // namespace
}  // namespace syncopate::k8s
