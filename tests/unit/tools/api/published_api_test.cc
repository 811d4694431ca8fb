// The interface of this tree: the packed descriptors, and the pages that describe them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/file_system.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"
#include "tools/api/descriptors.h"
#include "tools/api/reference.h"

namespace syncopate::api {
namespace {

using ::syncopate::testing::IsOk;

constexpr int64_t kMaxPageBytes = 4 << 20;

std::string InTree(const std::string& path) { return JoinPath(SYNCOPATE_SOURCE_DIR, path); }

class PublishedApiTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_THAT(api_, IsOk()); }

  absl::StatusOr<ApiDescriptors> api_ = ApiDescriptors::Read(SYNCOPATE_DESCRIPTORS);
};

TEST_F(PublishedApiTest, IsPackedWithAllThatItNeeds) {
  testing::TempDir folder;
  const std::string packed = folder.path() + "/protos";
  auto script = testing::Process::Start(
      {.program = InTree("scripts/protos.sh"), .args = {"--dir", packed}, .log_path = folder.path() + "/log"});
  ASSERT_THAT(script, IsOk());
  auto exit = (*script)->WaitExit(absl::Minutes(1));
  ASSERT_THAT(exit, IsOk());
  ASSERT_EQ(*exit, testing::ExitStatus{}) << (*script)->Log();
  auto compiled = ApiDescriptors::Read(packed + "/syncopate.protoset");
  ASSERT_THAT(compiled, IsOk());
  EXPECT_EQ(compiled->files().size(), api_->files().size());
  EXPECT_EQ(ApiReference(*compiled), ApiReference(*api_));
  EXPECT_THAT(ReadFile(FileSystem::Real(), packed + "/google/rpc/status.proto", kMaxPageBytes), IsOk());
}

// Expects that `path` equals what scripts/docs.sh would write now.
void ExpectCurrent(const std::string& path, const std::string& reference) {
  auto page = ReadFile(FileSystem::Real(), InTree(path), kMaxPageBytes);
  ASSERT_THAT(page, IsOk());
  auto made = ReplaceGenerated(*page, reference);
  ASSERT_THAT(made, IsOk());
  EXPECT_TRUE(*made == *page) << path << " is not what the .proto files say; run scripts/docs.sh and commit it";
}

TEST_F(PublishedApiTest, IsWhatTheApiPageDescribes) { ExpectCurrent("docs/api.md", ApiReference(*api_)); }

TEST_F(PublishedApiTest, HasTheKeysThatTheConfigurationPageDescribes) {
  ExpectCurrent("docs/config.md", ConfigReference(*api_));
}

}  // namespace
}  // namespace syncopate::api
