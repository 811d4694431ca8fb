#include "services/auth/permissions.h"

#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncopate::auth {
namespace {

using enum AuthRole;

constexpr auto kReads = CallEffect::kReads;
constexpr auto kActs = CallEffect::kActs;
constexpr bool kHello = true;

constexpr AuthRoles kOperators = {kAdmin};
constexpr AuthRoles kObservers = {kAdmin, kViewer};
constexpr AuthRoles kWitnesses = {kAdmin, kViewer, kTrainer};  // the trainer writes a run's summary from their answers
constexpr AuthRoles kAsking = {kAdmin, kClient};
constexpr AuthRoles kEverybody = {kTrainer, kRollouter, kSynchronizer, kAdmin, kViewer, kClient};

// The whole table, one row a method, so that it can be compared with security.md. A test compares it with the
// descriptors, and a method without a row is refused.
std::vector<Permission> MakeTable() {
  const std::string synchronizer = "syncopate.v1.SynchronizerService";
  const std::string trajectories = "syncopate.v1.TrajectoryService";
  const std::string trainer = "syncopate.v1.TrainerService";
  const std::string rollouter = "syncopate.v1.RolloutService";
  const std::string weights = "syncopate.v1.WeightService";
  const std::string ranks = "syncopate.v1.RankService";
  const std::string replica = "syncopate.v1.ReplicaService";
  const std::string environment = "syncopate.v1.EnvironmentService";  // of the worker of users' Python, not of a daemon
  const std::string channelz = "grpc.channelz.v1.Channelz";
  return {
      {synchronizer, "Join", kActs, {kTrainer, kRollouter}, kHello},
      {synchronizer, "PublishVersion", kActs, {kTrainer}},
      {synchronizer, "CompleteRun", kActs, {kTrainer}},
      {synchronizer, "GetStatus", kReads, kWitnesses},
      {synchronizer, "ListMembers", kReads, kWitnesses},
      {synchronizer, "ListVersions", kReads, kObservers},
      {synchronizer, "WatchSyncs", kReads, kWitnesses},
      {synchronizer, "TriggerSync", kActs, kOperators},
      {synchronizer, "EvictMember", kActs, kOperators},

      {trajectories, "Exchange", kActs, {kRollouter}, kHello},

      {ranks, "Attend", kActs, {kTrainer}, kHello},
      {replica, "Attend", kActs, {kRollouter}, kHello},

      {trainer, "GetStatus", kReads, kObservers},
      {trainer, "WatchSteps", kReads, kObservers},
      {trainer, "GetModel", kReads, {kRollouter}},
      {trainer, "Pause", kActs, kOperators},
      {trainer, "Resume", kActs, kOperators},
      {trainer, "Stop", kActs, kOperators},
      {trainer, "SaveCheckpoint", kActs, kOperators},
      {trainer, "ExportModel", kActs, kOperators},
      {trainer, "RolloutMode", kActs, kOperators},
      {trainer, "TrainerMode", kActs, kOperators},

      {rollouter, "GetStatus", kReads, kWitnesses},
      // Generate only reads, but it takes the engine's time from training: no observer may call it.
      {rollouter, "Generate", kReads, kAsking},
      {rollouter, "GenerateStream", kReads, kAsking},
      {rollouter, "Abort", kActs, kOperators},
      {rollouter, "Pause", kActs, kOperators},
      {rollouter, "Resume", kActs, kOperators},
      {rollouter, "Drain", kActs, kOperators},
      {rollouter, "Sleep", kActs, kOperators},
      {rollouter, "WakeUp", kActs, kOperators},
      {rollouter, "RolloutMode", kActs, kOperators},
      {rollouter, "TrainerMode", kActs, kOperators},
      {rollouter, "LoadCheckpoint", kActs, kOperators},
      {rollouter, "SaveCheckpoint", kActs, kOperators},

      // The weights are the thing worth stealing: not even an administrator may read them over the network.
      {weights, "FetchWeights", kReads, {kRollouter}},

      {environment, "Describe", kReads, {kTrainer, kRollouter}},
      {environment, "ListTasks", kReads, {kTrainer}},
      {environment, "Score", kReads, {kRollouter}},
      {environment, "Play", kReads, {kRollouter}},

      {"grpc.health.v1.Health", "Check", kReads, kEverybody},
      {"grpc.health.v1.Health", "Watch", kReads, kEverybody},
      {"grpc.reflection.v1alpha.ServerReflection", "ServerReflectionInfo", kReads, kObservers},
      {channelz, "GetTopChannels", kReads, kObservers},
      {channelz, "GetServers", kReads, kObservers},
      {channelz, "GetServer", kReads, kObservers},
      {channelz, "GetServerSockets", kReads, kObservers},
      {channelz, "GetChannel", kReads, kObservers},
      {channelz, "GetSubchannel", kReads, kObservers},
      {channelz, "GetSocket", kReads, kObservers},
  };
}

std::unordered_map<std::string, const Permission*> MakeIndex() {
  std::unordered_map<std::string, const Permission*> index;
  for (const Permission& one : AllPermissions()) index[absl::StrCat("/", one.service, "/", one.method)] = &one;
  return index;
}

}  // namespace

const std::vector<Permission>& AllPermissions() {
  static const auto* table = new std::vector<Permission>(MakeTable());
  return *table;
}

const Permission* FindPermission(const std::string& path) {
  static const auto* index = new std::unordered_map<std::string, const Permission*>(MakeIndex());
  auto found = index->find(path);
  return found == index->end() ? nullptr : found->second;
}

}  // namespace syncopate::auth
