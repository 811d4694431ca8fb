#include "tools/doctor/rank_memory.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/unit_shards.h"
#include "model/model_config.h"
#include "services/config/run_model.h"
#include "synchronizer/plan/layout_text.h"
#include "synchronizer/plan/sync_plan.h"
#include "synchronizer/transport/send_arena.h"

namespace syncopate::doctor {
namespace {

using Level = Finding::Level;

constexpr int64_t kWeightBytes = 4;
// Beside each weight that is trained: its gradient and two moments, in float32.
constexpr int64_t kTrainedBytes = 12;
constexpr int64_t kBFloat16Bytes = 2;

bool IsOnGpu(const v1::RunConfig& config) { return absl::StartsWith(config.train().device(), "cuda"); }

int64_t CountSlots(const v1::RunConfig& config) {
  if (config.sync().send_slots() > 0) return config.sync().send_slots();
  return IsOnGpu(config) ? 1 : 2;
}

// Whether rollouters that take turns with the trainer map its base weights. On a GPU they map none that are staged in
// host memory.
bool LendsBase(const v1::RunConfig& config, const config::RunModel& model) {
  return config::LendsBase(config, model.shape) && (!IsOnGpu(config) || config.sync().transport() != "grpc");
}

std::string MiB(int64_t bytes) { return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20)); }

}  // namespace

absl::StatusOr<std::vector<RankMemory>> GetRankMemory(const v1::RunConfig& config) {
  SYNCOPATE_ASSIGN_OR_RETURN(const config::RunModel model, config::FindRunModel(config));
  SYNCOPATE_ASSIGN_OR_RETURN(const Manifest wire, config::MakeWireManifest(config, model.shape));
  const auto world = static_cast<int32_t>(config.trainer().world());
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::Layout source,
                             synchronizer::BuildLayout(wire, absl::StrCat("units:", world, ":fp32")));
  const std::string receivers = config::MakeRolloutLayout(config, model.shape);
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::Layout destination,
                             synchronizer::BuildLayout(wire, receivers.empty() ? "whole:1" : receivers));
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::SyncPlan plan,
                             synchronizer::SyncPlan::Create(wire, source, destination));
  const std::vector<UnitShards> units = CutUnits(wire, world);
  int64_t elements = 0;  // of each rank's shards, padding included
  for (const UnitShards& unit : units) elements += unit.shard;
  // Adapters are the last unit, and the only one that is trained. On a GPU their base is there in bfloat16 alone.
  const bool has_base = model.shape.lora.enabled();
  const int64_t trained = has_base ? units.back().shard : elements;
  const int64_t in_float32 = has_base && IsOnGpu(config) ? trained : elements;
  const int64_t lent = LendsBase(config, model) ? synchronizer::SendArena::LendableBytes(wire, plan) : 0;
  // On a GPU the policy computes with the base that it lends, where the send slots have it. All published shapes can
  // (trainer::CanHoldBase); for one that cannot, this is too low by one base.
  const int64_t copied = !IsOnGpu(config) ? 0 : lent > 0 ? trained : elements;
  const int64_t state = in_float32 * kWeightBytes + trained * kTrainedBytes + copied * kBFloat16Bytes;
  // Gradients begin with 0, and the copy that computes is made of the weights, unless a base is there in it alone.
  const int64_t moved =
      in_float32 * kWeightBytes + trained * 2 * kWeightBytes + (has_base && lent == 0 ? copied * kBFloat16Bytes : 0);
  std::vector<RankMemory> ranks;
  for (int32_t rank = 0; rank < world; ++rank) {
    const int64_t send = CountSlots(config) * (plan.send_bytes(rank) - lent) + lent;
    ranks.push_back({.state = state, .send = send, .lent = lent, .moved = moved});
  }
  return ranks;
}

std::vector<Finding> ExamineRankMemory(const Machine& machine, const v1::RunConfig& config) {
  const absl::StatusOr<std::vector<RankMemory>> ranks = GetRankMemory(config);
  if (!ranks.ok()) return {};
  int64_t needed = 0, available = machine.available_bytes;
  for (const RankMemory& rank : *ranks) {
    needed = IsOnGpu(config) ? std::max(needed, rank.total()) : needed + rank.total();
  }
  if (IsOnGpu(config)) {
    available = 0;
    for (const Gpu& gpu : machine.gpu.gpus) available = available == 0 ? gpu.bytes : std::min(available, gpu.bytes);
  }
  // A GPU that is not there is a finding of its own.
  const bool fits = available == 0 || needed <= available;
  std::vector<Finding> findings;
  for (size_t rank = 0; rank < ranks->size(); ++rank) {
    const RankMemory& one = (*ranks)[rank];
    Finding finding{Level::kGood, absl::StrCat("trainer rank ", rank), "the model, trainer.world, sync.send_slots",
                    absl::StrCat(MiB(one.state), " of weights, gradients and moments, ", MiB(one.send), " in ",
                                 CountSlots(config), " send slots"),
                    ""};
    if (!fits) {
      finding.level = Level::kBad;
      finding.remedy = absl::StrCat(
          IsOnGpu(config) ? "a GPU here has " : "all ranks are on this machine, which has ", MiB(available),
          IsOnGpu(config) ? "; raise trainer.world, or take a smaller model"
                          : " available; take a smaller model, or put ranks on other machines");
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace syncopate::doctor
