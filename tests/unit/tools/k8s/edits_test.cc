#include "tools/k8s/edits.h"

#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/tools/k8s/parsed.h"
#include "tools/k8s/config_map.h"

namespace syncopate::k8s {
namespace {

using ::testing::HasSubstr;

Document Parsed(const std::string& text) { return ParseDocument(text, "test").value(); }
Selector Select(const std::string& text) { return Selector::Parse(Parsed(text), "test").value(); }

Document Named(const std::string& kind, const std::string& name) {
  return {{"kind", kind}, {"metadata", {{"name", name}, {"labels", {{"app", "x"}}}}}};
}

TEST(SelectorTest, ExpressionsMatchWholeWords) {
  EXPECT_TRUE(Select("{kind: Job|Deployment}").Matches(Named("Job", "a")));
  EXPECT_FALSE(Select("{kind: Job|Deployment}").Matches(Named("JobSet", "a")));
  EXPECT_FALSE(Select("{kind: Job, name: b}").Matches(Named("Job", "ab")));
}

TEST(SelectorTest, EveryLabelMustBeThere) {
  EXPECT_TRUE(Select("{labelSelector: app=x}").Matches(Named("Job", "a")));
  EXPECT_FALSE(Select("{labelSelector: 'app=x,tier=y'}").Matches(Named("Job", "a")));
}

TEST(SelectorTest, KeysThatItDoesNotKnowAreRefused) {
  EXPECT_EQ(ErrorReason(Selector::Parse(Parsed("{namespace: a}"), "test").status()), "BAD_KUSTOMIZATION");
  EXPECT_EQ(ErrorReason(Selector::Parse(Parsed("{kind: '('}"), "test").status()), "BAD_KUSTOMIZATION");
}

TEST(PatchTest, OperationsChangeEveryObjectOfTheTarget) {
  Objects objects = {Named("Job", "a"), Named("Job", "b"), Named("Service", "a")};
  auto patch = MakePatch(Select("{kind: Job}"), Parsed("[{op: add, path: /spec, value: {n: 1}}]"), "test");
  ASSERT_TRUE(patch.ok());
  EXPECT_EQ(ApplyPatch(*patch, &objects).value(), 2u);
  EXPECT_EQ(objects[1]["spec"]["n"], 1);
  EXPECT_FALSE(objects[2].contains("spec"));
}

TEST(PatchTest, DeletionTakesTheObjectsAway) {
  Objects objects = {Named("Job", "a"), Named("Service", "a")};
  auto patch = MakePatch(Select("{kind: Job}"), Parsed("{$patch: delete}"), "test");
  ASSERT_TRUE(patch.ok());
  EXPECT_EQ(ApplyPatch(*patch, &objects).value(), 1u);
  EXPECT_EQ(objects, Objects({Named("Service", "a")}));
}

TEST(PatchTest, AnOperationThatFindsNothingNamesTheObject) {
  Objects objects = {Named("Job", "a")};
  auto patch = MakePatch(Select("{kind: Job}"), Parsed("[{op: replace, path: /spec/n, value: 1}]"), "file");
  ASSERT_TRUE(patch.ok());
  const absl::Status refused = ApplyPatch(*patch, &objects).status();
  EXPECT_EQ(ErrorReason(refused), "BAD_KUSTOMIZATION");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("file: Job/a"));
}

TEST(PatchTest, StrategicMergesAreRefusedRatherThanGuessed) {
  EXPECT_EQ(ErrorReason(MakePatch(Select("{kind: Job}"), Parsed("{spec: {n: 1}}"), "test").status()),
            "BAD_KUSTOMIZATION");
}

TEST(ImageTest, OnlyTheNamedImageIsRenamedWhateverItsTag) {
  Objects objects = {
      Parsed("spec: {containers: [{image: syncopate}, {image: 'syncopate:1'}, {image: 'r:5/syncopate'}]}")};
  ASSERT_TRUE(SetImage(Parsed("{name: syncopate, newName: r/s, newTag: '2'}"), "test", &objects).ok());
  EXPECT_EQ(objects[0], Parsed("spec: {containers: [{image: 'r/s:2'}, {image: 'r/s:2'}, {image: 'r:5/syncopate'}]}"));
}

TEST(ImageTest, ADigestTakesThePlaceOfTheTag) {
  Objects objects = {Parsed("spec: {containers: [{image: 'syncopate:1'}]}")};
  ASSERT_TRUE(SetImage(Parsed("{name: syncopate, digest: 'sha256:ab'}"), "test", &objects).ok());
  EXPECT_EQ(Text(objects[0]["spec"]["containers"][0], {"image"}), "syncopate@sha256:ab");
}

TEST(ReplacementTest, CopiesAWholePartIntoANamedElement) {
  Objects objects = {Parsed("{kind: Job, metadata: {name: a}, spec: {n: 1}}"),
                     Parsed("{kind: JobSet, metadata: {name: s}, spec: {jobs: [{name: b}, {name: a, template: {}}]}}")};
  const Document entry = Parsed(
      "source: {kind: Job, name: a, fieldPath: spec}\n"
      "targets: [{select: {kind: JobSet}, fieldPaths: ['spec.jobs.[name=a].template.spec'], options: {create: true}}]");
  ASSERT_TRUE(Replace(entry, "test", &objects).ok());
  EXPECT_EQ(objects[1]["spec"]["jobs"][1], Parsed("{name: a, template: {spec: {n: 1}}}"));
}

TEST(ReplacementTest, AMissingSourceIsAnError) {
  Objects objects;
  EXPECT_EQ(ErrorReason(Replace(Parsed("source: {kind: Job}"), "test", &objects)), "BAD_KUSTOMIZATION");
}

TEST(NamesTest, GeneratedNamesAreFollowedWherePodsNameThem) {
  Objects objects = {Parsed("{kind: ConfigMap, metadata: {name: c}, data: {k: v}}"),
                     Parsed("spec: {volumes: [{configMap: {name: c}}, {configMap: {name: other}}]}")};
  const std::string suffixed = "c-" + NameSuffix(objects[0]);
  SuffixNames({"c"}, &objects);
  EXPECT_EQ(Text(objects[0], {"metadata", "name"}), suffixed);
  EXPECT_EQ(objects[1]["spec"]["volumes"][0]["configMap"]["name"], suffixed);
  EXPECT_EQ(objects[1]["spec"]["volumes"][1]["configMap"]["name"], "other");
}

TEST(NamesTest, TheSuffixIsThatOfKustomize) {
  // As `kubectl kustomize` 1.36 prints it.
  const Document map = Parsed(
      "{kind: ConfigMap, metadata: {name: syncopate-nccl}, data: {NCCL_DEBUG: WARN, NCCL_IB_DISABLE: '1', "
      "NCCL_SOCKET_IFNAME: eth0}}");
  EXPECT_EQ(NameSuffix(map), "kg6b9b5k69");
}

}  // namespace
}  // namespace syncopate::k8s
