#include "tools/k8s/infra.h"

#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncopate::k8s {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string InfraRefusal(const std::string& text) {
  return std::string(Infra::Parse(text, "infra.yaml").status().message());
}

TEST(InfraTest, AnEmptyFileAsksForNothing) {
  auto infra = Infra::Parse("# nothing\n", "infra.yaml");
  ASSERT_TRUE(infra.ok()) << infra.status();
  EXPECT_TRUE(infra->Wishes({}).empty());
  EXPECT_TRUE(infra->components().empty());
}

TEST(InfraTest, EveryProblemIsNamedAtOnce) {
  EXPECT_THAT(InfraRefusal("namespace: Rl\ntrainer: {gpus: -1, memory: lots}\nrollouter: {gpsu: 1}\ngrace: 10\n"),
              AllOf(HasSubstr("namespace"), HasSubstr("trainer.gpus"), HasSubstr("trainer.memory"),
                    HasSubstr("nearest known key: rollouter.gpus"), HasSubstr("grace")));
}

TEST(InfraTest, ImagesNeedATagOrADigest) {
  EXPECT_THAT(InfraRefusal("image: registry.example/syncopate"), HasSubstr("a tag or a digest"));
  EXPECT_TRUE(Infra::Parse("image: r.example:5000/syncopate:0.1.0", "infra.yaml").ok());
  EXPECT_TRUE(Infra::Parse("image: syncopate@sha256:" + std::string(64, 'a'), "infra.yaml").ok());
}

TEST(InfraTest, TheSynchronizerTakesNoGpu) {
  EXPECT_THAT(InfraRefusal("synchronizer: {gpus: 1}"), HasSubstr("known key"));
}

TEST(InfraTest, WorkersAndGatewaysHaveANumberAndNoGpu) {
  EXPECT_TRUE(
      Infra::Parse("environment: {replicas: 3, cpu: 2}\ngateway: {replicas: 2, memory: 1Gi}", "infra.yaml").ok());
  EXPECT_THAT(InfraRefusal("environment: {replicas: 0}\ngateway: {gpus: 1}"),
              AllOf(HasSubstr("environment.replicas"), HasSubstr("gateway.gpus")));
}

TEST(InfraTest, ThereIsOneTrainerProcess) {
  EXPECT_THAT(InfraRefusal("trainer: {replicas: 2}"), HasSubstr("known key"));
}

TEST(InfraTest, ARoleThatIsNoMapIsRefused) { EXPECT_THAT(InfraRefusal("trainer: 7"), HasSubstr("trainer")); }

TEST(InfraTest, ATextInPlaceOfAMapIsRefused) {
  EXPECT_EQ(ErrorReason(Infra::Parse("- a\n", "infra.yaml").status()), "BAD_INFRA");
  EXPECT_EQ(ErrorReason(Infra::Parse("a: 1\n---\nb: 2\n", "infra.yaml").status()), "BAD_INFRA");
}

TEST(InfraTest, EnvironmentValuesAreTexts) {
  EXPECT_THAT(InfraRefusal("nccl: {NCCL_IB_DISABLE: 1}"), HasSubstr("in quotes"));
}

TEST(InfraTest, VolumesNameAClaimAndAPathOfTheirOwn) {
  EXPECT_TRUE(Infra::Parse("volumes: [{claim: models, path: /models, read_only: true}, {claim: data, path: /data}]",
                           "infra.yaml")
                  .ok());
  for (const char* wrong :
       {"[{claim: models}]", "[{path: /models}]", "[{claim: models, path: models}]", "[{claim: models, path: /}]",
        "[{claim: models, path: /a/../b}]", "[{claim: models, path: /tmp}]",
        "[{claim: a, path: /a}, {claim: b, path: /a}]", "[{claim: models, path: /models, read_only: 1}]",
        "[{claim: m, path: /m, readonly: true}]", "{claim: models, path: /models}"}) {
    EXPECT_THAT(InfraRefusal(std::string("volumes: ") + wrong), HasSubstr("{claim: NAME, path: /ABSOLUTE/PATH"))
        << wrong;
  }
}

TEST(InfraTest, TheWorkersImageNeedsATagToo) {
  EXPECT_THAT(InfraRefusal("environment: {image: worker}"),
              AllOf(HasSubstr("environment.image"), HasSubstr("a tag or a digest")));
  EXPECT_THAT(InfraRefusal("environment: {imag: worker}"), HasSubstr("nearest known key: environment.image"));
}

}  // namespace
}  // namespace syncopate::k8s
