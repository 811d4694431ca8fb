#include "tools/doctor/card_memory.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/config/ranks.h"
#include "services/config/run_model.h"
#include "synchronizer/plan/layout_text.h"
#include "tools/doctor/rank_memory.h"

namespace syncopate::doctor {
namespace {

using Level = Finding::Level;

// A process with libtorch and its kernels, before anything of the run: measured on an H100, docs/one-card.md.
constexpr int64_t kProcessBytes = int64_t{1} << 30;
// The copies of a turn between a GPU and page-locked memory of its host: measured on an H100, docs/performance.md.
constexpr double kBytesASecond = 45e9;

enum class Sharing { kApart, kSplit, kTurns };

bool IsCuda(const std::string& device) { return absl::StartsWith(device, "cuda"); }

std::string InGiB(int64_t bytes) { return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / (1 << 30)); }

Sharing FindSharing(const v1::RunConfig& config) {
  if (config.run().share_gpu()) return Sharing::kTurns;
  // "cuda" and "auto" give each process a GPU of its own.
  const bool same = config.train().device() == config.rollout().device() && config.train().device() != "cuda";
  return same ? Sharing::kSplit : Sharing::kApart;
}

// `needed`: without keys and values but those of one sequence; `wanted`: with those of all.
void Judge(int64_t needed, int64_t wanted, int64_t card, const std::string& remedy, Finding* finding) {
  if (card == 0 || wanted <= card) return;  // a GPU that is not there is a finding of its own
  finding->level = needed > card ? Level::kBad : Level::kWarning;
  const std::string has = absl::StrCat("a GPU here has ", InGiB(card));
  finding->remedy = needed > card ? absl::StrCat(has, "; ", remedy)
                                  : absl::StrCat(has, ": fewer sequences run at a time than rollout.max_sequences");
}

}  // namespace

absl::StatusOr<CardMemory> GetCardMemory(const v1::RunConfig& config) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<RankMemory> ranks, GetRankMemory(config));
  SYNCOPATE_ASSIGN_OR_RETURN(const config::RunModel model, config::FindRunModel(config));
  SYNCOPATE_ASSIGN_OR_RETURN(const Manifest wire, config::MakeWireManifest(config, model.shape));
  CardMemory memory;
  memory.state = ranks.front().state;
  memory.send = ranks.front().send;
  memory.lent = ranks.front().lent;
  memory.moved = ranks.front().moved;
  const std::string layout = config::MakeRolloutLayout(config, model.shape);
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::Layout receivers,
                             synchronizer::BuildLayout(wire, layout.empty() ? "whole:1" : layout));
  // Norms, and whatever else all ranks have, are in each of them.
  for (int32_t rank = 0; rank < receivers.ranks(); ++rank) {
    memory.weights = std::max(memory.weights, receivers.arena_bytes(rank));
  }
  memory.sequence = model.shape.max_position_embeddings * model.shape.num_hidden_layers * 2 *
                    model.shape.key_value_size() * DTypeBytes(config::ToWireDType(config)) /
                    config.rollout().tensor_parallel();
  memory.sequences = memory.sequence * config.rollout().max_sequences();
  for (const RankMemory& rank : ranks) {
    memory.host_state += rank.moved;
    memory.host_send += rank.send - rank.lent;  // what is lent stays on the card
  }
  memory.host_kv = config.rollout().tensor_parallel() * config::GetHostKvBytes(config.rollout());
  return memory;
}

std::vector<Finding> ExamineCardMemory(const Machine& machine, const v1::RunConfig& config) {
  if (!IsCuda(config.train().device()) || !IsCuda(config.rollout().device())) return {};
  const absl::StatusOr<CardMemory> memory = GetCardMemory(config);
  if (!memory.ok()) return {};
  int64_t card = 0;
  for (const Gpu& gpu : machine.gpu.gpus) card = card == 0 ? gpu.bytes : std::min(card, gpu.bytes);
  const int64_t others = memory->sequences - memory->sequence;
  const std::string looked_at = "the model, rollout.max_sequences, sync.send_slots";
  const std::string state = absl::StrCat(InGiB(memory->state), " of state and ", InGiB(memory->send), " of send slots");
  const std::string kv =
      absl::StrCat(InGiB(memory->sequences), " of keys and values of ", config.rollout().max_sequences(), " sequences");
  const Sharing sharing = FindSharing(config);

  Finding apart{Level::kGood, "a card each", looked_at,
                absl::StrCat(InGiB(memory->apart_trainer() + kProcessBytes), " for the trainer (", state, "), ",
                             InGiB(memory->apart_rollouter() + kProcessBytes), " for a rollouter (two weight sets of ",
                             InGiB(memory->weights), ", ", kv, ")"),
                ""};
  const int64_t apart_most = std::max(memory->apart_trainer(), memory->apart_rollouter()) + kProcessBytes;
  const int64_t apart_least = std::max(memory->apart_trainer(), memory->apart_rollouter() - others) + kProcessBytes;
  if (sharing == Sharing::kApart) {
    Judge(apart_least, apart_most, card, "raise trainer.world or rollout.tensor_parallel", &apart);
  }

  Finding split{Level::kGood, "one card, split", looked_at,
                absl::StrCat(InGiB(memory->split() + 2 * kProcessBytes), " (", state, ", two weight sets of ",
                             InGiB(memory->weights), ", ", kv, ")"),
                ""};
  if (sharing == Sharing::kSplit) {
    Judge(memory->split() - others + 2 * kProcessBytes, memory->split() + 2 * kProcessBytes, card,
          "take turns on it with run.share_gpu", &split);
  }

  Finding turns{
      Level::kGood, "one card, in turns", looked_at,
      absl::StrCat(InGiB(memory->trainers_turn() + 2 * kProcessBytes), " in the trainer's turn (", state, "), ",
                   InGiB(memory->rollouters_turn() + 2 * kProcessBytes), " in the rollouters' (one weight set of ",
                   InGiB(memory->weights),
                   memory->lent > 0 ? absl::StrCat(", ", InGiB(memory->lent), " of it the trainer's send slots' base, ")
                                    : ", as much for send slots, ",
                   kv, "); ", InGiB(memory->host_state + memory->host_send + memory->host_kv),
                   " of host memory (state ", InGiB(memory->host_state), ", send slots ", InGiB(memory->host_send),
                   ", rollout.host_kv_memory ", InGiB(memory->host_kv), "); a turn moves the state twice, in ",
                   absl::StrFormat("%.2f s", 2 * static_cast<double>(memory->moved) / kBytesASecond)),
      ""};
  if (sharing == Sharing::kTurns) {
    const int64_t turn = memory->trainers_turn() + 2 * kProcessBytes;
    const int64_t rollouters = memory->rollouters_turn() + 2 * kProcessBytes;
    Judge(std::max(turn, rollouters - others), std::max(turn, rollouters), card,
          "raise trainer.world, train adapters (lora.rank), or take a smaller model", &turns);
    const int64_t host = memory->host_state + memory->host_send + memory->host_kv;
    if (machine.available_bytes > 0 && host > machine.available_bytes && turns.level != Level::kBad) {
      turns.level = Level::kBad;
      turns.remedy = absl::StrCat("this machine has ", InGiB(machine.available_bytes),
                                  " of memory available; lower rollout.host_kv_memory, or take a smaller model");
    }
  }
  return {apart, split, turns};
}

}  // namespace syncopate::doctor
