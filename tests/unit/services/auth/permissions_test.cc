// Compares the table of permissions with the services of the .proto files.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "services/auth/access.h"
#include "services/auth/permissions.h"

namespace syncopate::auth {
namespace {

// "/package.Service/Method" of every service in proto/, as protoc lists them and not the linker.
std::set<std::string> CallsInProtoFiles() {
  std::ifstream file(SYNCOPATE_PROTOSET, std::ios::binary);
  google::protobuf::FileDescriptorSet files;
  EXPECT_TRUE(files.ParseFromIstream(&file)) << SYNCOPATE_PROTOSET;
  std::set<std::string> calls;
  for (const auto& one : files.file()) {
    if (!absl::StartsWith(one.package(), "syncopate.")) continue;
    for (const auto& service : one.service()) {
      for (const auto& method : service.method()) {
        calls.insert(absl::StrCat("/", one.package(), ".", service.name(), "/", method.name()));
      }
    }
  }
  return calls;
}

std::string Path(const Permission& one) { return absl::StrCat("/", one.service, "/", one.method); }

TEST(PermissionsTest, EveryCallOfEveryServiceHasAnEntryAndNoOtherOfOursHas) {
  const std::set<std::string> calls = CallsInProtoFiles();
  ASSERT_GE(calls.size(), 29u);
  for (const std::string& call : calls) EXPECT_NE(FindPermission(call), nullptr) << call << " has no entry";
  for (const Permission& one : AllPermissions()) {
    if (!absl::StartsWith(one.service, "syncopate.")) continue;
    EXPECT_EQ(calls.count(Path(one)), 1u) << Path(one) << " is in the table, and no service has it";
  }
}

TEST(PermissionsTest, NoCallIsInTheTableTwice) {
  std::set<std::string> seen;
  for (const Permission& one : AllPermissions()) EXPECT_TRUE(seen.insert(Path(one)).second) << Path(one);
}

TEST(PermissionsTest, NobodyMayMakeACallThatIsNotInTheTable) {
  for (const char* path : {"", "/", "/syncopate.v1.TrainerService/Explode", "syncopate.v1.TrainerService/GetStatus",
                           "/syncopate.v1.TrainerService/GetStatus/", "/syncopate.v1.TrainerService/getstatus"}) {
    EXPECT_EQ(FindPermission(path), nullptr) << path;
    for (AuthRole role : AllAuthRoles()) {
      EXPECT_TRUE(absl::IsPermissionDenied(Authorize({role, "x"}, path))) << path;
    }
  }
}

TEST(PermissionsTest, AViewerChangesNothing) {
  for (const Permission& one : AllPermissions()) {
    const bool viewed = one.roles.Contains(AuthRole::kViewer);
    EXPECT_TRUE(!viewed || one.effect == CallEffect::kReads) << Path(one);
  }
}

TEST(PermissionsTest, WhatAViewerMayDoAnAdminMayToo) {
  for (const Permission& one : AllPermissions()) {
    const bool viewed = one.roles.Contains(AuthRole::kViewer);
    EXPECT_TRUE(!viewed || one.roles.Contains(AuthRole::kAdmin)) << Path(one);
  }
}

TEST(PermissionsTest, AClientGetsAnswersAndNothingElse) {
  for (const Permission& one : AllPermissions()) {
    const bool answers = one.method == "Generate" || one.method == "GenerateStream";
    const bool health = one.service == "grpc.health.v1.Health";
    EXPECT_EQ(one.roles.Contains(AuthRole::kClient), answers || health) << Path(one);
  }
}

TEST(PermissionsTest, DaemonsMayActInTheirOwnPartOnly) {
  const std::map<std::string, AuthRoles> parts = {
      {"/syncopate.v1.SynchronizerService/Join", {AuthRole::kTrainer, AuthRole::kRollouter}},
      {"/syncopate.v1.SynchronizerService/PublishVersion", {AuthRole::kTrainer}},
      {"/syncopate.v1.SynchronizerService/CompleteRun", {AuthRole::kTrainer}},
      {"/syncopate.v1.TrajectoryService/Exchange", {AuthRole::kRollouter}},
      {"/syncopate.v1.RankService/Attend", {AuthRole::kTrainer}},
      {"/syncopate.v1.ReplicaService/Attend", {AuthRole::kRollouter}}};
  for (const Permission& one : AllPermissions()) {
    if (one.effect != CallEffect::kActs) continue;
    auto part = parts.find(Path(one));
    for (AuthRole role : AllAuthRoles()) {
      const bool own = part != parts.end() ? part->second.Contains(role) : role == AuthRole::kAdmin;
      EXPECT_EQ(one.roles.Contains(role), own) << AuthRoleName(role) << " " << Path(one);
    }
  }
}

TEST(PermissionsTest, WeightsGoToRolloutersAlone) {
  const Permission* fetch = FindPermission("/syncopate.v1.WeightService/FetchWeights");
  ASSERT_NE(fetch, nullptr);
  EXPECT_EQ(fetch->roles.ToString(), "rollouter");
}

TEST(PermissionsTest, ThePageAboutSecurityHasTheTableAsItIs) {
  std::ifstream file(SYNCOPATE_SOURCE_DIR "/docs/security.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::vector<std::string> parts = absl::StrSplit(page, "## Who may do what");
  ASSERT_EQ(parts.size(), 2u);
  size_t rows = 0;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(parts[1].substr(0, parts[1].find("## ")), '\n'))) {
    rows += absl::StartsWith(line, "| `") ? 1 : 0;
  }
  for (const Permission& one : AllPermissions()) {
    const std::string name = absl::StrCat(absl::StripPrefix(one.service, "syncopate.v1."), ".", one.method);
    const std::string row = absl::StrCat("\n| `", name, "` | ", one.roles.ToString(), " | ",
                                         one.effect == CallEffect::kActs ? "acts" : "reads", " |\n");
    EXPECT_TRUE(absl::StrContains(page, row)) << "docs/security.md lacks" << row;
  }
  EXPECT_EQ(rows, AllPermissions().size()) << "docs/security.md has rows of calls that are not in the table";
}

}  // namespace
}  // namespace syncopate::auth
