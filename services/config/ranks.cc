#include "services/config/ranks.h"

#include <cmath>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "base/status.h"
#include "ranks/group_secret.h"
#include "services/config/run_config.h"

namespace syncopate::config {
namespace {

absl::Status BadRank(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_CONFIG", message);
}

struct RankKeys {
  std::string section;
  std::string world_key;
  int64_t rank = -1;
  int64_t world = 1;
  std::string rank0;
};

absl::StatusOr<int32_t> GetRank(const RankKeys& keys) {
  int64_t rank = keys.rank;
  std::string source = absl::StrCat(keys.section, ".rank");
  if (rank < 0) {
    // A launcher may set RANK for reasons of its own, so a job of one rank ignores it.
    const char* const said = keys.world > 1 ? std::getenv("RANK") : nullptr;
    rank = 0;
    source = "RANK";
    if (said != nullptr && !absl::SimpleAtoi(said, &rank))
      return BadRank(absl::StrCat("RANK is '", said, "', no rank"));
  }
  if (rank < 0 || rank >= keys.world) {
    return BadRank(
        absl::StrCat(source, " is ", rank, ", but ", keys.world_key, " has only ranks 0 to ", keys.world - 1));
  }
  if (rank > 0 && keys.rank0.empty()) {
    return BadRank(absl::StrCat(keys.section, " rank ", rank, " needs ", keys.section,
                                ".rank0, the host:port of rank 0's gRPC server"));
  }
  return static_cast<int32_t>(rank);
}

}  // namespace

absl::StatusOr<int32_t> GetTrainerRank(const v1::TrainerSection& trainer) {
  return GetRank({"trainer", "trainer.world", trainer.rank(), trainer.world(), trainer.rank0()});
}

absl::StatusOr<int32_t> GetRolloutRank(const v1::RunConfig& config) {
  const v1::RollouterSection& rollouter = config.rollouter();
  return GetRank({"rollouter", "rollout.tensor_parallel", rollouter.rank(), config.rollout().tensor_parallel(),
                  rollouter.rank0()});
}

absl::StatusOr<std::string> FindReplicaSecret(bool is_secured) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::string secret, ParseGroupSecret(std::getenv(kGroupSecretVariable)));
  if (!secret.empty() || is_secured) return secret;
  return BadRank(
      absl::StrCat("the ranks of a rollouter (rollout.tensor_parallel above 1) need a secret that they share, in ",
                   kGroupSecretVariable,
                   ": start them with `syncopate run` or `syncopate replica`, which give it to them, or set up "
                   "mutual TLS or a bearer token (security.*)"));
}

absl::StatusOr<ListenAddress> GetTrainerRanksListen(const v1::TrainerSection& trainer) {
  const bool is_set = !trainer.ranks_listen().empty();
  SYNCOPATE_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(is_set ? trainer.ranks_listen() : trainer.listen()));
  if (!is_set) address.port = 0;
  return ListenAddress{address, "trainer.ranks_listen"};
}

absl::StatusOr<ListenAddress> GetRolloutRanksListen(const v1::RollouterSection& rollouter) {
  SYNCOPATE_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(rollouter.ranks_listen()));
  address.port = 0;  // the port is that of rank 0's gRPC server
  return ListenAddress{address, "rollouter.ranks_listen"};
}

int64_t GetHostKvBytes(const v1::RolloutSection& rollout) {
  return std::llround(rollout.host_kv_memory() * (int64_t{1} << 30));
}

std::string RankConfigDigest(const v1::RunConfig& config) {
  v1::RunConfig common = config;
  v1::TrainerSection* trainer = common.mutable_trainer();
  trainer->clear_rank();
  trainer->clear_rank0();
  trainer->clear_listen();
  trainer->clear_ranks_listen();
  trainer->clear_advertise();
  trainer->clear_health_listen();
  common.clear_synchronizer();
  common.clear_rollouter();
  common.clear_metrics();
  common.clear_security();                       // each rank has its own certificate
  common.mutable_environment()->clear_digest();  // known only when the worker is there
  return Sha256Hex(ToYaml(common));
}

}  // namespace syncopate::config
