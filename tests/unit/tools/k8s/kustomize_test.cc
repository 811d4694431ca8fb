#include "tools/k8s/kustomize.h"

#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncopate::k8s {
namespace {

using ::testing::HasSubstr;

constexpr char kService[] = "{apiVersion: v1, kind: Service, metadata: {name: s}}";

std::string ReasonOf(const FileTree& tree) { return ErrorReason(Kustomize(tree, "top").status()); }

TEST(KustomizeTest, ComponentsChangeWhatTheResourcesMade) {
  const FileTree tree = {{"base/kustomization.yaml", "resources: [service.yaml]"},
                         {"base/service.yaml", kService},
                         {"part/kustomization.yaml",
                          "patches: [{target: {kind: Service}, patch: '[{op: add, path: /spec, value: {n: 1}}]'}]"},
                         {"top/kustomization.yaml", "resources: [../base]\ncomponents: [../part]\nnamespace: rl"}};
  auto made = Kustomize(tree, "top");
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_EQ(made->objects.size(), 1u);
  EXPECT_EQ(made->objects[0], ParseDocument("{apiVersion: v1, kind: Service, metadata: {name: s, namespace: rl}, "
                                            "spec: {n: 1}}",
                                            "test")
                                  .value());
}

TEST(KustomizeTest, SaysHowManyObjectsEachPatchFound) {
  const FileTree tree = {{"top/s.yaml", kService},
                         {"top/kustomization.yaml",
                          "resources: [s.yaml]\npatches:\n- {target: {kind: Job}, patch: '[]'}\n"
                          "- {target: {kind: Service}, patch: '[]'}"}};
  auto made = Kustomize(tree, "top");
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_EQ(made->patches.size(), 2u);
  EXPECT_EQ(made->patches[0].objects, 0u);
  EXPECT_EQ(made->patches[1].objects, 1u);
}

TEST(KustomizeTest, KeysThatItDoesNotKnowAreRefused) {
  EXPECT_EQ(ReasonOf({{"top/kustomization.yaml", "helmCharts: []"}}), "BAD_KUSTOMIZATION");
  EXPECT_EQ(ReasonOf({{"top/kustomization.yaml", "configMapGenerator: [{name: a, env: x}]"}}), "BAD_KUSTOMIZATION");
}

TEST(KustomizeTest, FilesThatAreNotThereAreNamed) {
  const absl::Status status = Kustomize({{"top/kustomization.yaml", "resources: [a.yaml]"}}, "top").status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("top/a.yaml"));
}

TEST(KustomizeTest, ACircleEnds) {
  EXPECT_EQ(ReasonOf({{"top/kustomization.yaml", "resources: [../top]"}}), "BAD_KUSTOMIZATION");
}

TEST(KustomizeTest, AnObjectIsMadeOnce) {
  EXPECT_EQ(ReasonOf({{"top/s.yaml", kService}, {"top/kustomization.yaml", "resources: [s.yaml, s.yaml]"}}),
            "BAD_KUSTOMIZATION");
}

TEST(KustomizeTest, ValuesOfAnotherKindAreRefusedNotThrown) {
  EXPECT_EQ(ReasonOf({{"top/kustomization.yaml", "resources: [{a: 1}]"}}), "BAD_KUSTOMIZATION");
  EXPECT_EQ(ReasonOf({{"top/kustomization.yaml", "namespace: [a]"}}), "BAD_KUSTOMIZATION");
  EXPECT_EQ(ReasonOf({{"top/kustomization.yaml", "images: [7]"}}), "BAD_KUSTOMIZATION");
  EXPECT_EQ(ReasonOf({{"top/kustomization.yaml", "[1, 2]"}}), "BAD_KUSTOMIZATION");
  EXPECT_EQ(ReasonOf({{"top/kustomization.yaml", "patches: [7]"}}), "BAD_YAML");
}

}  // namespace
}  // namespace syncopate::k8s
