#include "tools/k8s/kubectl.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/process.h"

namespace syncopate::k8s {
namespace {

using ::testing::HasSubstr;

class KubectlTest : public ::testing::Test {
 protected:
  // A kubectl that is a shell script.
  Kubectl Fake(const std::string& script, absl::Duration deadline = absl::Minutes(1)) const {
    const std::string path = temp_.path() + "/kubectl";
    std::ofstream(path) << "#!/bin/sh\n" << script;
    ::chmod(path.c_str(), 0700);
    return Kubectl({.program = path, .deadline = deadline});
  }

  const testing::TempDir temp_;
  const FileTree tree_ = {{"run/kustomization.yaml", "resources: [a.yaml]\n"}, {"run/a.yaml", "kind: Job\n"}};
};

TEST_F(KubectlTest, PrintsWhatItMakesOfTheFolder) {
  auto text = Fake("cat \"$2\"/a.yaml\necho \"# $1\"\n").Kustomize(tree_, "run");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "kind: Job\n# kustomize\n");
}

TEST_F(KubectlTest, LeavesNoFolderBehind) {
  const std::string said = temp_.path() + "/said";
  ASSERT_TRUE(Fake("echo \"$2\" > " + said + "\n").Kustomize(tree_, "run").ok());
  std::string folder;
  std::getline(std::ifstream(said) >> std::ws, folder);
  EXPECT_THAT(folder, HasSubstr("/run"));
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST_F(KubectlTest, ARefusalIsItsOwnWordsWithPathsOfTheTree) {
  const absl::Status refused = Fake("echo \"Error: $2/a.yaml is bad\" >&2\nexit 1\n").Kustomize(tree_, "run").status();
  EXPECT_EQ(ErrorReason(refused), "BAD_KUSTOMIZATION");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("kustomize: Error: run/a.yaml is bad"));
}

TEST_F(KubectlTest, WhereItIsMissingTheErrorSaysWhatToInstall) {
  const absl::Status missing = Kubectl({.program = temp_.path() + "/none"}).Kustomize(tree_, "run").status();
  EXPECT_EQ(ErrorReason(missing), "NO_KUBECTL");
  EXPECT_THAT(std::string(missing.message()), HasSubstr("install kubectl"));
}

TEST_F(KubectlTest, OneThatDoesNotEndIsKilled) {
  const absl::Status stuck = Fake("exec tail -f /dev/null\n", absl::Milliseconds(50)).Kustomize(tree_, "run").status();
  EXPECT_EQ(ErrorReason(stuck), "KUBECTL_STUCK");
}

}  // namespace
}  // namespace syncopate::k8s
