#include "base/daemon/daemon_endpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "base/status.h"

namespace syncopate::daemon {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

class DaemonEndpointsTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::path(testing::TempDir()) / "endpoints" / test->name();
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  std::string Dir(const std::string& name = "") { return (dir_ / name).string(); }
  void Write(const std::string& name, const std::string& text) { std::ofstream(dir_ / name) << text; }

  fs::path dir_;
};

const DaemonEndpoint kTrainer{"trainer", 0, "127.0.0.1:1", "127.0.0.1:2", 11};
const DaemonEndpoint kFirst{"rollouter", 0, "127.0.0.1:3", "127.0.0.1:4", 12};
const DaemonEndpoint kSecond{"rollouter", 1, "127.0.0.1:5", "127.0.0.1:6", 13};

TEST_F(DaemonEndpointsTest, ReadsBackWhatADaemonWrote) {
  ASSERT_TRUE(WriteDaemonEndpoint(Dir(), kSecond).ok());
  auto read = ReadDaemonEndpoint(EndpointPath(Dir(), "rollouter", 1));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, kSecond);
  EXPECT_EQ(read->Name(), "rollouter-1");
}

TEST_F(DaemonEndpointsTest, LeavesNoOtherFileBehind) {
  ASSERT_TRUE(WriteDaemonEndpoint(Dir(), kTrainer).ok());
  ASSERT_TRUE(WriteDaemonEndpoint(Dir(), kTrainer).ok());
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_ / "endpoints"), fs::directory_iterator()), 1);
}

TEST_F(DaemonEndpointsTest, ReadsTheUnionInOrder) {
  ASSERT_TRUE(WriteRunEndpoints(Dir(), {kTrainer, kSecond, kFirst}).ok());
  auto read = ReadRunEndpoints(Dir());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(*read, ElementsAre(kFirst, kSecond, kTrainer));
}

TEST_F(DaemonEndpointsTest, ReadsTheDaemonsOwnFilesWhereNobodyWroteTheUnion) {
  for (const DaemonEndpoint& endpoint : {kTrainer, kSecond, kFirst}) {
    ASSERT_TRUE(WriteDaemonEndpoint(Dir(), endpoint).ok());
  }
  auto read = ReadRunEndpoints(Dir());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(*read, ElementsAre(kFirst, kSecond, kTrainer));
}

TEST_F(DaemonEndpointsTest, SaysWhatIsMissingOrDamaged) {
  EXPECT_EQ(ErrorReason(ReadRunEndpoints(Dir("nothing")).status()), "NO_ENDPOINT");
  EXPECT_EQ(ErrorReason(ReadDaemonEndpoint(Dir("nothing")).status()), "NO_ENDPOINT");
  for (const char* text : {"", "{", "[]", "7", "{\"role\": \"trainer\"}",
                           "{\"role\":1,\"index\":0,\"grpc\":\"a\",\"metrics\":\"b\",\"pid\":1}",
                           "{\"role\":\"trainer\",\"index\":\"0\",\"grpc\":\"a\",\"metrics\":\"b\",\"pid\":1}"}) {
    Write("damaged.json", text);
    EXPECT_EQ(ErrorReason(ReadDaemonEndpoint(Dir("damaged.json")).status()), "BAD_ENDPOINT") << text;
  }
  Write("endpoints.json", "{}");
  EXPECT_EQ(ErrorReason(ReadRunEndpoints(Dir()).status()), "BAD_ENDPOINT");
}

TEST_F(DaemonEndpointsTest, AFolderThatCannotBeMadeIsNamed) {
  Write("file", "");
  auto status = WriteDaemonEndpoint(Dir("file"), kTrainer);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(Dir("file")));
}

TEST_F(DaemonEndpointsTest, TheNewestRunIsTheOneWhoseEndpointsWereWrittenLast) {
  EXPECT_EQ(ErrorReason(FindNewestRun(Dir()).status()), "NO_RUN");
  EXPECT_EQ(ErrorReason(FindNewestRun(Dir("nowhere")).status()), "NO_RUN");
  for (const char* run : {"a", "b", "c"}) {
    fs::create_directories(dir_ / run);
    ASSERT_TRUE(WriteRunEndpoints(Dir(run), {kTrainer}).ok());
  }
  auto now = fs::file_time_type::clock::now();
  fs::last_write_time(dir_ / "a" / "endpoints.json", now - std::chrono::hours(1));
  fs::last_write_time(dir_ / "b" / "endpoints.json", now + std::chrono::hours(1));
  fs::last_write_time(dir_ / "c" / "endpoints.json", now);
  EXPECT_EQ(FindNewestRun(Dir()).value(), Dir("b"));
}

TEST(RanksSecretTest, IsReadAsItWasWrittenLastAndIsItsOwnersAlone) {
  const std::string run_dir = ::testing::TempDir() + "/ranks-secret";
  std::filesystem::remove_all(run_dir);
  EXPECT_EQ(ReadRanksSecret(run_dir).value(), "");
  const std::string first(32, '\0'), second("\n\xff" + std::string(30, 'x'));
  ASSERT_TRUE(WriteRanksSecret(run_dir, first).ok());
  EXPECT_EQ(ReadRanksSecret(run_dir).value(), first);
  ASSERT_TRUE(WriteRanksSecret(run_dir, second).ok());
  EXPECT_EQ(ReadRanksSecret(run_dir).value(), second);
  using std::filesystem::perms;
  EXPECT_EQ(std::filesystem::status(RanksSecretPath(run_dir)).permissions(), perms::owner_read | perms::owner_write);
}

}  // namespace
}  // namespace syncopate::daemon
