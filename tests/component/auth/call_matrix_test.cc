// Makes every call in every role, over real connections with real certificates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/auth/permissions.h"
#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "syncopate/v1/environment.grpc.pb.h"
#include "syncopate/v1/rank.grpc.pb.h"
#include "syncopate/v1/replica.grpc.pb.h"
#include "syncopate/v1/rollout.grpc.pb.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "syncopate/v1/trainer.grpc.pb.h"
#include "syncopate/v1/trajectory.grpc.pb.h"
#include "syncopate/v1/weights.grpc.pb.h"
#include "tests/component/auth/raw_call.h"
#include "tests/support/test_authority.h"

namespace syncopate::auth {
namespace {

// The roles that may make a call: t(rainer), r(ollouter), s(ynchronizer), a(dmin), v(iewer). The table is written down
// a second time and not computed, so that a mistake in the product's table admits no caller.
const std::map<std::string, std::string>& Expected() {
  static const auto* expected =
      new std::map<std::string, std::string>{{"/syncopate.v1.SynchronizerService/Join", "tr"},
                                             {"/syncopate.v1.SynchronizerService/PublishVersion", "t"},
                                             {"/syncopate.v1.SynchronizerService/CompleteRun", "t"},
                                             {"/syncopate.v1.SynchronizerService/GetStatus", "tav"},
                                             {"/syncopate.v1.SynchronizerService/ListMembers", "tav"},
                                             {"/syncopate.v1.SynchronizerService/ListVersions", "av"},
                                             {"/syncopate.v1.SynchronizerService/WatchSyncs", "tav"},
                                             {"/syncopate.v1.SynchronizerService/TriggerSync", "a"},
                                             {"/syncopate.v1.SynchronizerService/EvictMember", "a"},
                                             {"/syncopate.v1.TrajectoryService/Exchange", "r"},
                                             {"/syncopate.v1.TrainerService/GetStatus", "av"},
                                             {"/syncopate.v1.TrainerService/WatchSteps", "av"},
                                             {"/syncopate.v1.TrainerService/GetModel", "r"},
                                             {"/syncopate.v1.TrainerService/Pause", "a"},
                                             {"/syncopate.v1.TrainerService/Resume", "a"},
                                             {"/syncopate.v1.TrainerService/Stop", "a"},
                                             {"/syncopate.v1.TrainerService/SaveCheckpoint", "a"},
                                             {"/syncopate.v1.TrainerService/ExportModel", "a"},
                                             {"/syncopate.v1.TrainerService/RolloutMode", "a"},
                                             {"/syncopate.v1.TrainerService/TrainerMode", "a"},
                                             {"/syncopate.v1.RolloutService/GetStatus", "tav"},
                                             {"/syncopate.v1.RolloutService/Generate", "ac"},
                                             {"/syncopate.v1.RolloutService/GenerateStream", "ac"},
                                             {"/syncopate.v1.RolloutService/Abort", "a"},
                                             {"/syncopate.v1.RolloutService/Pause", "a"},
                                             {"/syncopate.v1.RolloutService/Resume", "a"},
                                             {"/syncopate.v1.RolloutService/Drain", "a"},
                                             {"/syncopate.v1.RolloutService/Sleep", "a"},
                                             {"/syncopate.v1.RolloutService/WakeUp", "a"},
                                             {"/syncopate.v1.RolloutService/RolloutMode", "a"},
                                             {"/syncopate.v1.RolloutService/TrainerMode", "a"},
                                             {"/syncopate.v1.RolloutService/LoadCheckpoint", "a"},
                                             {"/syncopate.v1.RolloutService/SaveCheckpoint", "a"},
                                             {"/syncopate.v1.WeightService/FetchWeights", "r"},
                                             {"/syncopate.v1.EnvironmentService/Describe", "tr"},
                                             {"/syncopate.v1.EnvironmentService/ListTasks", "t"},
                                             {"/syncopate.v1.EnvironmentService/Score", "r"},
                                             {"/syncopate.v1.EnvironmentService/Play", "r"},
                                             {"/grpc.health.v1.Health/Check", "trsavc"},
                                             {"/grpc.health.v1.Health/Watch", "trsavc"},
                                             {"/syncopate.v1.RankService/Attend", "t"},
                                             {"/syncopate.v1.ReplicaService/Attend", "r"},
                                             {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "av"},
                                             {"/grpc.channelz.v1.Channelz/GetTopChannels", "av"},
                                             {"/grpc.channelz.v1.Channelz/GetServers", "av"},
                                             {"/grpc.channelz.v1.Channelz/GetServer", "av"},
                                             {"/grpc.channelz.v1.Channelz/GetServerSockets", "av"},
                                             {"/grpc.channelz.v1.Channelz/GetChannel", "av"},
                                             {"/grpc.channelz.v1.Channelz/GetSubchannel", "av"},
                                             {"/grpc.channelz.v1.Channelz/GetSocket", "av"}};
  return *expected;
}

std::string GetLetter(AuthRole role) { return std::string(AuthRoleName(role), 1); }

// All services, with handlers that do nothing.
struct Services {
  v1::SynchronizerService::CallbackService synchronizer;
  v1::TrajectoryService::CallbackService trajectories;
  v1::TrainerService::CallbackService trainer;
  v1::RolloutService::CallbackService rollouter;
  v1::RankService::CallbackService ranks;
  v1::ReplicaService::CallbackService replica;
  v1::WeightService::CallbackService weights;
  v1::EnvironmentService::CallbackService environment;

  std::vector<grpc::Service*> all() {
    return {&synchronizer, &trajectories, &trainer, &rollouter, &ranks, &replica, &weights, &environment};
  }
};

// The calls by which a process takes part in the run.
bool SaysHello(const std::string& path) {
  for (const char* method : {"/Join", "/Exchange", "/Attend"}) {
    if (absl::EndsWith(path, method)) return true;
  }
  return false;
}

// An allowed call reaches its service, which does nothing; health, reflection and channelz are the real services.
void ExpectVerdict(const std::string& path, AuthRole role, bool allowed, const absl::Status& status) {
  SCOPED_TRACE(absl::StrCat(AuthRoleName(role), " ", path, ": ", status.ToString()));
  EXPECT_EQ(!absl::IsPermissionDenied(status), allowed);
  if (!absl::StartsWith(path, "/syncopate.")) return;
  EXPECT_EQ(absl::IsUnimplemented(status), allowed);
  if (allowed) return;
  EXPECT_EQ(ErrorReason(status), SaysHello(path) ? "WRONG_ROLE" : "NOT_ALLOWED");
  EXPECT_THAT(std::string(status.message()), ::testing::EndsWith(" may"));
}

// Health/Watch never ends by itself, and every role may call it, so a deadline counts as an answer.
absl::Duration GetTimeout(const std::string& path) {
  return absl::EndsWith(path, "/Watch") ? absl::Milliseconds(500) : absl::Seconds(60);
}

TEST(CallMatrixTest, NamesEveryCallOfTheTable) {
  std::set<std::string> in_table;
  for (const Permission& one : AllPermissions()) in_table.insert(absl::StrCat("/", one.service, "/", one.method));
  std::set<std::string> expected;
  for (const auto& [path, roles] : Expected()) expected.insert(path);
  EXPECT_EQ(in_table, expected);
}

TEST(CallMatrixTest, EveryRoleMayMakeItsCallsAndNoOthersByItsCertificate) {
  const testing::TestAuthority authority;
  Services services;
  const auto security = authority.SecurityFor("synchronizer");
  auto server = rpc::Server::Start({.security = security}, services.all()).value();
  int64_t denied = 0;
  for (AuthRole role : AllAuthRoles()) {
    auto channel = rpc::MakeChannel(server->address(), {.security = authority.SecurityFor(AuthRoleName(role))}).value();
    for (const auto& [path, roles] : Expected()) {
      const bool allowed = absl::StrContains(roles, GetLetter(role));
      denied += allowed ? 0 : 1;
      ExpectVerdict(path, role, allowed, CallRaw(channel, {.path = path, .timeout = GetTimeout(path)}));
    }
    EXPECT_TRUE(absl::IsPermissionDenied(CallRaw(channel, {.path = "/syncopate.v1.TrainerService/NoSuchCall"})));
    ++denied;
  }
  EXPECT_EQ(security->refusals(), denied);
}

TEST(CallMatrixTest, EveryRoleMayMakeItsCallsAndNoOthersByItsToken) {
  const testing::TestAuthority authority;
  std::string tokens;
  for (AuthRole role : AllAuthRoles())
    absl::StrAppend(&tokens, AuthRoleName(role), " ", std::string(32, GetLetter(role)[0]), "\n");
  const std::string file = authority.WriteSecret("tokens", tokens);
  Services services;
  auto server = rpc::Server::Start({.security = *TransportSecurity::Load({.role = "trainer", .token_file = file})},
                                   services.all())
                    .value();
  auto channel = rpc::MakeChannel(server->address()).value();
  for (AuthRole role : AllAuthRoles()) {
    const std::map<std::string, std::string> metadata = {
        {"authorization", "Bearer " + std::string(32, GetLetter(role)[0])}};
    for (const auto& [path, roles] : Expected()) {
      const bool allowed = absl::StrContains(roles, GetLetter(role));
      ExpectVerdict(path, role, allowed, CallRaw(channel, {path, GetTimeout(path), metadata}));
    }
  }
}

}  // namespace
}  // namespace syncopate::auth
