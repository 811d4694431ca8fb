#include "tools/k8s/selector.h"

#include "base/status.h"
#include "gtest/gtest.h"
#include "tests/unit/tools/k8s/parsed.h"

namespace syncopate::k8s {
namespace {

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

}  // namespace
}  // namespace syncopate::k8s
